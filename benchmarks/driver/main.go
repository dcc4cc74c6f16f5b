// The load of the benchmarks: its clients, and with -backend what they ask, a process of its own.
// In one process Go has both on one thread for most of the time, one after the other.
//
// It is written in Go because a driver in Python would be slower than what it is to measure. It
// reads commands from standard input, one JSON object a line, and answers each with one line:
// first, unasked, the ports that it listens at. It ends with its input.
// The commands of a backend are Stored. With -objects it is the API server of the benchmark of the
// hub instead. Its commands are Settings, and it answers how many watches are open.
package main

import (
	"bufio"
	"encoding/json"
	"flag"
	"fmt"
	"os"
)

// Command is one piece of work: requests, connections, download, upload, datagrams, list, watch, or a
// link to be started.
type Command struct {
	Work    string `json:"work"`
	Way     Way    `json:"way"`
	Clients int    `json:"clients"`
	Tested  []int  `json:"tested"` // processes whose CPU time is wanted

	Seconds float64 `json:"seconds"` // requests and connections: how long they count
	WarmUp  float64 `json:"warm_up"` // and how long they do not, before
	Stalled int     `json:"stalled"` // requests: readers that stall meanwhile
	Ended   bool    `json:"ended"`   // connections: the backend ends each, and the client waits for that
	Hosts   int     `json:"hosts"`   // requests: Way.Host has a %d, for a number below this

	Path   string   `json:"path"`   // what is asked for; of watches with {} for their number
	Fields []string `json:"fields"` // more fields of the head: "Name: value"
	Answer string   `json:"answer"` // requests: the body that each answer has to have

	Bytes int    `json:"bytes"` // download and upload: what each client carries; list: at most
	Item  string `json:"item"`  // list: what each item has once

	Target string  `json:"target"` // link: where it leads
	Delay  float64 `json:"delay"`  // seconds, each way
	Rate   float64 `json:"rate"`   // bytes a second, each way
}

// Result is what a run has shown. Times are seconds; Bytes and Operations are those within them.
type Result struct {
	Seconds    float64         `json:"seconds"`
	Operations int             `json:"operations"`
	Bytes      int             `json:"bytes"`
	First      float64         `json:"first"` // list: when the answer began
	P50        float64         `json:"p50"`
	P99        float64         `json:"p99"`
	TestedCPU  map[int]float64 `json:"tested_cpu"`
	DriverCPU  float64         `json:"driver_cpu"`
	MachineCPU float64         `json:"machine_cpu"`
	Digests    []string        `json:"digests,omitempty"` // upload: SHA-256 of what each client has sent
}

func main() {
	certificate := flag.String("certificate", "", "certificate of a backend or an API server (PEM)")
	key := flag.String("key", "", "its key (PEM)")
	backend := flag.String("backend", "", "be a backend, at this address")
	objects := flag.String("objects", "", "be an API server of what is in this directory")
	flag.Parse()
	if *objects != "" {
		api, port, err := startAPI(*certificate, *key, *objects)
		if err != nil {
			fail(err)
		}
		answer(map[string]int{"secure": port})
		perform(api.set)
		return
	}
	if *backend != "" {
		served := &Backend{}
		plain, secure, err := served.listen(*backend, *certificate, *key)
		if err != nil {
			fail(err)
		}
		echo, err := startEcho(*backend)
		if err != nil {
			fail(err)
		}
		answer(map[string]int{"plain": plain, "secure": secure, "echo": echo})
		perform(served.stored)
		return
	}
	load := &Load{}
	answer(map[string]int{})
	perform(load.perform)
}

func fail(err error) {
	answer(map[string]string{"error": err.Error()})
	os.Exit(1)
}

// perform does what is asked for, line by line, until the end of the input.
func perform(one func([]byte) any) {
	lines := bufio.NewScanner(os.Stdin)
	for lines.Scan() {
		answer(one(lines.Bytes()))
	}
}

func answer(what any) {
	line, err := json.Marshal(what)
	if err != nil {
		line = []byte(fmt.Sprintf(`{"error": %q}`, err.Error()))
	}
	os.Stdout.Write(append(line, '\n'))
}

// Load is the state that commands share.
type Load struct {
	runs     int
	received Arena
}

func (load *Load) perform(line []byte) any {
	var command Command
	var result any
	err := json.Unmarshal(line, &command)
	if err == nil {
		switch command.Work {
		case "requests":
			result, err = requests(command)
		case "connections":
			result, err = connections(command)
		case "download":
			result, err = load.download(command)
		case "upload":
			result, err = load.upload(command)
		case "datagrams":
			result, err = datagrams(command)
		case "list":
			result, err = load.list(command)
		case "watch":
			result, err = watch(command)
		case "link":
			result, err = startLink(command)
		default:
			err = fmt.Errorf("unknown work %q", command.Work)
		}
	}
	if err != nil {
		return map[string]string{"error": err.Error()}
	}
	return result
}
