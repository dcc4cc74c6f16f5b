// The load of the benchmarks: the clients, and with -backend their backend, in a separate process.
// In one process Go would run both alternately on one thread for most of the time.
//
// It is written in Go because a driver in Python would be slower than the programs under test. It
// reads commands from standard input, one JSON object per line, and answers each with one line. The
// first line, before any command, has the ports that it listens on. It exits at the end of its input.
// The commands of a backend are Stored. With -objects it is the API server for the benchmark of the
// hub instead: its commands are Settings, and its answers the number of open watches.
package main

import (
	"bufio"
	"encoding/json"
	"flag"
	"fmt"
	"os"
)

// Command is a piece of work: requests, connections, download, upload, datagrams, list, watch, or
// starting a link.
type Command struct {
	Work    string `json:"work"`
	Way     Way    `json:"way"`
	Clients int    `json:"clients"`
	Tested  []int  `json:"tested"` // processes whose CPU time is measured

	Seconds float64 `json:"seconds"` // requests and connections: the measured time
	WarmUp  float64 `json:"warm_up"` // the time before that
	Stalled int     `json:"stalled"` // requests: the number of additional stalled readers
	Ended   bool    `json:"ended"`   // connections: the backend closes each, and the client waits for that
	Hosts   int     `json:"hosts"`   // requests: Way.Host has a %d, for a number below this

	Path   string   `json:"path"`   // the requested path; for watches with {} for their number
	Fields []string `json:"fields"` // more header fields: "Name: value"
	Answer string   `json:"answer"` // requests: the expected body of each response

	Bytes int    `json:"bytes"` // download and upload: the size for each client; list: the maximum size
	Item  string `json:"item"`  // list: a text that each item contains once

	Target string  `json:"target"` // link: its target
	Delay  float64 `json:"delay"`  // seconds in each direction
	Rate   float64 `json:"rate"`   // bytes per second in each direction
}

// Result is the result of a run. Times are in seconds; Bytes and Operations are those within them.
type Result struct {
	Seconds    float64         `json:"seconds"`
	Operations int             `json:"operations"`
	Bytes      int             `json:"bytes"`
	First      float64         `json:"first"` // list: when the response began
	P50        float64         `json:"p50"`
	P99        float64         `json:"p99"`
	TestedCPU  map[int]float64 `json:"tested_cpu"`
	DriverCPU  float64         `json:"driver_cpu"`
	MachineCPU float64         `json:"machine_cpu"`
	Digests    []string        `json:"digests,omitempty"` // upload: SHA-256 of the body of each client
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

// perform executes commands, line by line, until the end of the input.
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
