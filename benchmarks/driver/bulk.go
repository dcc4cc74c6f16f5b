package main

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"time"
)

// download fetches one body on each of several connections concurrently.
func (load *Load) download(command Command) (*Result, error) {
	return load.bulk(command, func(client *Client, stream, number int) error {
		_, err := fmt.Fprintf(client, "GET /bytes/%d/%d HTTP/1.1\r\nHost: %s\r\n\r\n",
			command.Bytes, number, command.Way.Host)
		if err != nil {
			return err
		}
		length, err := client.readHead()
		if err != nil {
			return err
		}
		if length != command.Bytes {
			return fmt.Errorf("answered %d bytes, expected %d", length, command.Bytes)
		}
		_, err = io.ReadFull(client.reader, load.received.part(stream, command.Bytes))
		return err
	})
}

// upload sends one body on each of several connections; the backend confirms each when it has
// arrived. The digests show whether the backend received what was sent.
func (load *Load) upload(command Command) (*Result, error) {
	return load.bulk(command, func(client *Client, stream, number int) error {
		_, err := fmt.Fprintf(client, "POST /sink/%d HTTP/1.1\r\nHost: %s\r\nContent-Length: %d\r\n\r\n",
			stream, command.Way.Host, command.Bytes)
		if err != nil {
			return err
		}
		err = content(number, command.Bytes, func(piece []byte) error {
			_, err := client.Write(piece)
			return err
		})
		if err != nil {
			return err
		}
		if _, err = client.readHead(); err != nil {
			return err
		}
		var body [len(small)]byte
		_, err = io.ReadFull(client.reader, body[:])
		return err
	})
}

// bulk transfers command.Bytes on each stream. The time is measured from the first request, on
// established connections, to the last byte; hashes are computed before and after.
func (load *Load) bulk(command Command, carry func(*Client, int, int) error) (*Result, error) {
	if err := command.Way.prepare(); err != nil {
		return nil, err
	}
	load.runs++
	if command.Work == "download" {
		load.received.reserve(command.Clients * command.Bytes)
	}
	clients := make([]*Client, command.Clients)
	for i := range clients {
		client, err := command.Way.dial()
		if err != nil {
			return nil, err
		}
		defer client.Close()
		client.SetDeadline(time.Now().Add(bulkPatience))
		clients[i] = client
	}
	first := load.runs * command.Clients
	expected := make([][sha256.Size]byte, command.Clients)
	sideBySide(command.Clients, func(i int) error {
		expected[i] = digestOfContent(first+i, command.Bytes)
		return nil
	})
	before := usage(command.Tested)
	if err := sideBySide(command.Clients, func(i int) error {
		return carry(clients[i], i, first+i)
	}); err != nil {
		return nil, err
	}
	result := before.since(command.Tested)
	result.Bytes = command.Clients * command.Bytes
	if command.Work == "upload" {
		for _, digest := range expected {
			result.Digests = append(result.Digests, hex.EncodeToString(digest[:]))
		}
		return result, nil
	}
	return result, sideBySide(command.Clients, func(i int) error {
		if sha256.Sum256(load.received.part(i, command.Bytes)) != expected[i] {
			return fmt.Errorf("stream %d: what has arrived is not what was sent (SHA-256)", i)
		}
		return nil
	})
}

// bulkPatience is the timeout of all bodies of a run.
const bulkPatience = 2 * time.Minute

func sideBySide(count int, do func(int) error) error {
	failures := make(chan error, count)
	for i := range count {
		go func() { failures <- do(i) }()
	}
	return all(failures, count)
}
