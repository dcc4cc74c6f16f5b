package main

import (
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

// watched is the path of the watches that get events; others stay open without any.
const watched = "/api/v1/namespaces/bench/configmaps"

// sentMark precedes the time at which an event was sent, in nanoseconds since the epoch.
const sentMark = `"benchmark/sent":"`

const sentDigits = 19

// Watches are the open watches, which get events in turn.
type Watches struct {
	lock sync.Mutex
	open []chan struct{}
}

// emit sends events at regular intervals.
func (watches *Watches) emit(api *API) {
	const pause = 10 * time.Millisecond
	next := time.Now()
	for turn := 0; ; turn++ {
		rate := api.settings.Load().Rate
		if rate == 0 {
			time.Sleep(pause)
			next = time.Now()
			continue
		}
		next = next.Add(seconds(1 / rate))
		time.Sleep(time.Until(next))
		watches.lock.Lock()
		if count := len(watches.open); count > 0 {
			select {
			case watches.open[turn%count] <- struct{}{}:
			default: // its client does not read; clients count the events that have arrived
			}
		}
		watches.lock.Unlock()
	}
}

func (watches *Watches) serve(w http.ResponseWriter, r *http.Request) {
	flusher := w.(http.Flusher)
	flusher.Flush()
	if r.URL.Path != watched {
		<-r.Context().Done()
		return
	}
	due := make(chan struct{}, 16)
	watches.lock.Lock()
	watches.open = append(watches.open, due)
	watches.lock.Unlock()
	defer watches.forget(due)
	name := strings.TrimPrefix(r.URL.Query().Get("fieldSelector"), "metadata.name=")
	for version := time.Now().UnixMicro(); ; version++ {
		select {
		case <-r.Context().Done():
			return
		case <-due:
			if _, err := w.Write(event(name, version)); err != nil {
				return
			}
			flusher.Flush()
		}
	}
}

func (watches *Watches) count() int {
	watches.lock.Lock()
	defer watches.lock.Unlock()
	return len(watches.open)
}

func (watches *Watches) forget(due chan struct{}) {
	watches.lock.Lock()
	defer watches.lock.Unlock()
	watches.open = slices.DeleteFunc(watches.open, func(each chan struct{}) bool { return each == due })
}

var configuration = strings.Repeat("setting: value of it\\n", 64)

func event(name string, version int64) []byte {
	return fmt.Appendf(nil, `{"type":"MODIFIED","object":{"kind":"ConfigMap","apiVersion":"v1",`+
		`"metadata":{"name":"%s","namespace":"bench","uid":"00000000-0000-4000-8000-000000000000",`+
		`"resourceVersion":"%d","creationTimestamp":"2025-06-15T15:06:40Z",`+
		`"annotations":{%s%d"}},"data":{"config.yaml":"%s"}}}`+"\n",
		name, version, sentMark, time.Now().UnixNano(), configuration)
}

// watch runs clients that watch one ConfigMap each. Their times are from the sending of an event to
// its arrival.
func watch(command Command) (*Result, error) {
	if err := command.Way.prepare(); err != nil {
		return nil, err
	}
	clients := make([]*Client, command.Clients)
	turns := make(chan struct{}, dialing)
	defer func() {
		for _, client := range clients {
			if client != nil {
				client.Close()
			}
		}
	}()
	if err := sideBySide(command.Clients, func(i int) (err error) {
		turns <- struct{}{}
		defer func() { <-turns }()
		if clients[i], err = command.Way.dial(); err != nil {
			return err
		}
		clients[i].SetDeadline(time.Now().Add(patience))
		one := command
		one.Path = strings.Replace(command.Path, "{}", strconv.Itoa(i), 1)
		if _, err = clients[i].Write(one.request()); err != nil {
			return err
		}
		_, err = clients[i].readHead()
		return err
	}); err != nil {
		return nil, err
	}
	return measured(command, func(i int, window Window, times *Times) error {
		clients[i].SetDeadline(window.end.Add(patience))
		for {
			line, err := clients[i].reader.ReadSlice('\n')
			if err != nil {
				return err
			}
			now := time.Now()
			if now.After(window.end) {
				return nil
			}
			_, rest, found := strings.Cut(string(line), sentMark)
			if !found || len(rest) < sentDigits {
				continue
			}
			sent, err := strconv.ParseInt(rest[:sentDigits], 10, 64)
			if err != nil {
				return err
			}
			times.note(window, time.Unix(0, sent), now)
		}
	})
}
