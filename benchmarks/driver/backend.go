package main

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"crypto/tls"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"strconv"
)

const small = "ok"

// once is the path of a response after which the connection is closed.
const once = "/once"

// Backend serves the clients, and stores uploads, to hash them outside the measured time.
type Backend struct{ received Arena }

// Stored is a command to a backend about uploads of Bytes bytes each. Before they begin it reserves
// memory for them; when they are Over it returns their digests.
type Stored struct {
	Streams int  `json:"streams"`
	Bytes   int  `json:"bytes"`
	Over    bool `json:"over"`
}

func (backend *Backend) stored(line []byte) any {
	var command Stored
	if err := json.Unmarshal(line, &command); err != nil {
		return map[string]string{"error": err.Error()}
	}
	backend.received.reserve(command.Streams * command.Bytes)
	digests := []string{}
	for stream := 0; command.Over && stream < command.Streams; stream++ {
		digest := sha256.Sum256(backend.received.part(stream, command.Bytes))
		digests = append(digests, hex.EncodeToString(digest[:]))
	}
	return map[string][]string{"digests": digests}
}

var smallAnswer = []byte("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n" + small)

// listen starts the backend on two ports of an address, the second one with TLS.
//
//	GET  /small        a few bytes
//	GET  /once         the same, and the end of the connection
//	GET  /bytes/N/M    N bytes of the content M
//	POST /sink/I       a body for part I of the received data; see Stored
func (backend *Backend) listen(address, certificate, key string) (int, int, error) {
	pair, err := tls.LoadX509KeyPair(certificate, key)
	if err != nil {
		return 0, 0, err
	}
	plain, err := net.Listen("tcp", net.JoinHostPort(address, "0"))
	if err != nil {
		return 0, 0, err
	}
	bare, err := net.Listen("tcp", net.JoinHostPort(address, "0"))
	if err != nil {
		return 0, 0, err
	}
	// Like a kubelet, it requests a client certificate.
	secure := tls.NewListener(bare, &tls.Config{
		Certificates: []tls.Certificate{pair}, ClientAuth: tls.RequestClientCert,
	})
	go backend.accept(plain)
	go backend.accept(secure)
	return portOf(plain), portOf(bare), nil
}

func portOf(listener net.Listener) int { return listener.Addr().(*net.TCPAddr).Port }

func (backend *Backend) accept(listener net.Listener) {
	for {
		connection, err := listener.Accept()
		if err != nil {
			return
		}
		go func() {
			defer connection.Close()
			// The client reports errors; here they only end the connection.
			backend.serve(connection)
		}()
	}
}

func (backend *Backend) serve(connection net.Conn) error {
	reader := bufio.NewReaderSize(connection, readerSize)
	for {
		line, err := reader.ReadSlice('\n')
		if err != nil {
			return err
		}
		words := bytes.SplitN(line, []byte(" "), 3)
		if len(words) != 3 {
			return fmt.Errorf("not a request: %q", line)
		}
		path := words[1]
		if bytes.Equal(path, []byte("/small")) {
			if _, err = readFields(reader); err == nil {
				_, err = connection.Write(smallAnswer)
			}
		} else if bytes.Equal(path, []byte(once)) {
			if _, err = readFields(reader); err == nil {
				connection.Write(smallAnswer)
				err = io.EOF
			}
		} else {
			err = backend.serveBulk(connection, reader, string(path))
		}
		if err != nil {
			return err
		}
	}
}

func (backend *Backend) serveBulk(connection net.Conn, reader *bufio.Reader, path string) error {
	parts := bytes.Split([]byte(path), []byte("/"))
	length, err := readFields(reader)
	if err != nil {
		return err
	}
	last, err := strconv.Atoi(string(parts[len(parts)-1]))
	if err != nil {
		return err
	}
	if string(parts[1]) == "sink" {
		if len(backend.received.memory) < (last+1)*length {
			return fmt.Errorf("there is no memory for stream %d", last)
		}
		if _, err := io.ReadFull(reader, backend.received.part(last, length)); err != nil {
			return err
		}
		_, err = connection.Write(smallAnswer)
		return err
	}
	size, err := strconv.Atoi(string(parts[2]))
	if err != nil {
		return err
	}
	fmt.Fprintf(connection, "HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n", size)
	return content(last, size, func(piece []byte) error {
		_, err := connection.Write(piece)
		return err
	})
}
