package main

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"net/http"
	"time"
)

// list sends one request and reads the whole response. Operations is the number of Items in it.
func (load *Load) list(command Command) (*Result, error) {
	if err := command.Way.prepare(); err != nil {
		return nil, err
	}
	load.received.reserve(command.Bytes)
	client, err := command.Way.dial()
	if err != nil {
		return nil, err
	}
	defer client.Close()
	client.SetDeadline(time.Now().Add(bulkPatience))
	reader := bufio.NewReaderSize(client, pieceSize)
	before := usage(command.Tested)
	if _, err := client.Write(command.request()); err != nil {
		return nil, err
	}
	response, err := http.ReadResponse(reader, nil)
	if err != nil {
		return nil, err
	}
	if response.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("%s: answered %s", command.Path, response.Status)
	}
	first := time.Since(before.at)
	body := load.received.part(0, command.Bytes)
	size, err := io.ReadFull(response.Body, body)
	if err != nil && err != io.ErrUnexpectedEOF {
		return nil, err
	}
	if rest, _ := io.Copy(io.Discard, response.Body); rest > 0 {
		return nil, fmt.Errorf("%s: more than %d bytes", command.Path, command.Bytes)
	}
	result := before.since(command.Tested)
	result.First = first.Seconds()
	result.Bytes = size
	result.Operations = bytes.Count(body[:size], []byte(command.Item))
	return result, nil
}
