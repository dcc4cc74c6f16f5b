package main

import (
	"bytes"
	"fmt"
	"io"
	"sort"
	"time"
)

// dialing is the number of clients that connect concurrently, because an agent limits pending dials.
const dialing = 64

// requests runs clients that repeatedly send a small request, each on its own connection. Before
// that it opens Stalled connections with a response that nobody reads.
func requests(command Command) (*Result, error) {
	if err := command.Way.prepare(); err != nil {
		return nil, err
	}
	for range command.Stalled {
		client, err := stall(&command.Way)
		if err != nil {
			return nil, fmt.Errorf("a reader that is to stall: %w", err)
		}
		defer client.Close()
	}
	if command.Stalled > 0 {
		time.Sleep(settling)
	}
	turns := make(chan struct{}, dialing)
	return measured(command, func(number int, window Window, times *Times) error {
		way := command.Way
		if command.Hosts > 0 {
			way.Host = fmt.Sprintf(way.Host, number%command.Hosts)
		}
		turns <- struct{}{}
		client, err := way.dial()
		<-turns
		if err != nil {
			return err
		}
		defer client.Close()
		client.SetDeadline(window.end.Add(patience))
		one := command
		one.Way = way
		request, expected := one.request(), one.expected()
		for {
			began := time.Now()
			if !began.Before(window.end) {
				return nil
			}
			if err := client.ask(request, expected); err != nil {
				return err
			}
			times.note(window, began, time.Now())
		}
	})
}

// connections runs clients that connect, send one request and close. The side that closes first keeps
// the port in TIME_WAIT for a minute. If that is the client, or a proxy for it, the ports of a machine
// that connects to itself are soon used up, and most of the measured time is the search for a free one.
func connections(command Command) (*Result, error) {
	if err := command.Way.prepare(); err != nil {
		return nil, err
	}
	if command.Ended {
		command.Path = once
	}
	request, expected := command.request(), command.expected()
	return measured(command, func(_ int, window Window, times *Times) error {
		for {
			began := time.Now()
			if !began.Before(window.end) {
				return nil
			}
			client, err := command.Way.dial()
			if err != nil {
				return err
			}
			client.SetDeadline(began.Add(patience))
			err = client.ask(request, expected)
			if err == nil && command.Ended {
				err = client.awaitEnd()
			}
			client.Close()
			if err != nil {
				return err
			}
			times.note(window, began, time.Now())
		}
	})
}

// settling is the time for the buffers on the way to stalled readers to fill.
const settling = 1500 * time.Millisecond

func stall(way *Way) (*Client, error) {
	client, err := way.dial()
	if err != nil {
		return nil, err
	}
	client.SetDeadline(time.Time{})
	_, err = fmt.Fprintf(client, "GET /bytes/%d/0 HTTP/1.1\r\nHost: %s\r\n\r\n", 1<<30, way.Host)
	return client, err
}

// request returns the request that a client sends repeatedly.
func (command *Command) request() []byte {
	path := command.Path
	if path == "" {
		path = "/small"
	}
	head := fmt.Sprintf("GET %s HTTP/1.1\r\nHost: %s\r\n", path, command.Way.Host)
	for _, field := range command.Fields {
		head += field + "\r\n"
	}
	return []byte(head + "\r\n")
}

func (command *Command) expected() []byte {
	if command.Answer == "" {
		return []byte(small)
	}
	return []byte(command.Answer)
}

func (client *Client) ask(request, expected []byte) error {
	if _, err := client.Write(request); err != nil {
		return err
	}
	length, err := client.readHead()
	if err != nil {
		return err
	}
	if length != len(expected) {
		return fmt.Errorf("answered %d bytes, expected %d", length, len(expected))
	}
	if cap(client.body) < length {
		client.body = make([]byte, length)
	}
	body := client.body[:length]
	if _, err := io.ReadFull(client.reader, body); err != nil {
		return err
	}
	if !bytes.Equal(body, expected) {
		return fmt.Errorf("answered %q", body)
	}
	return nil
}

func (client *Client) awaitEnd() error {
	_, err := client.reader.ReadByte()
	if err == io.EOF {
		return nil
	}
	if err == nil {
		err = fmt.Errorf("more came than was asked for")
	}
	return err
}

// Window is the measured time; only operations within it count.
type Window struct{ begin, end time.Time }

// Times are the durations of the operations of one client.
type Times struct{ taken []time.Duration }

func (times *Times) note(window Window, began, ended time.Time) {
	if !began.Before(window.begin) && !ended.After(window.end) {
		times.taken = append(times.taken, ended.Sub(began))
	}
}

// measured runs clients concurrently, and reads the CPU times at both ends of the window.
func measured(command Command, client func(int, Window, *Times) error) (*Result, error) {
	begin := time.Now().Add(seconds(command.WarmUp))
	window := Window{begin, begin.Add(seconds(command.Seconds))}
	times := make([]Times, command.Clients)
	failures := make(chan error, command.Clients)
	for i := range times {
		times[i].taken = make([]time.Duration, 0, 1<<16)
		go func() { failures <- client(i, window, &times[i]) }()
	}
	time.Sleep(time.Until(window.begin))
	before := usage(command.Tested)
	time.Sleep(time.Until(window.end))
	result := before.since(command.Tested)
	if err := all(failures, command.Clients); err != nil {
		return nil, err
	}
	var taken []time.Duration
	for _, each := range times {
		taken = append(taken, each.taken...)
	}
	if len(taken) == 0 {
		return nil, fmt.Errorf("no operation ended within %v s", command.Seconds)
	}
	sort.Slice(taken, func(i, j int) bool { return taken[i] < taken[j] })
	result.Operations = len(taken)
	result.P50 = taken[len(taken)/2].Seconds()
	result.P99 = taken[len(taken)*99/100].Seconds()
	return result, nil
}

func seconds(count float64) time.Duration { return time.Duration(count * float64(time.Second)) }

// all waits for count results, and returns the first failure.
func all(failures chan error, count int) error {
	var first error
	for range count {
		if err := <-failures; err != nil && first == nil {
			first = err
		}
	}
	return first
}
