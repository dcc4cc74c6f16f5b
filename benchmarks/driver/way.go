package main

import (
	"bufio"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net"
	"os"
	"strconv"
	"strings"
	"time"
)

// Way is the route of a client to the backend.
//
//	tcp      Address is the backend, or a proxy for it
//	connect  Address is a Unix socket for HTTP CONNECT, Host the target of the CONNECT
//	https    Address speaks TLS, and forwards requests by their Host
type Way struct {
	Kind        string `json:"kind"`
	Address     string `json:"address"`
	Host        string `json:"host"`
	Authority   string `json:"authority"`
	Certificate string `json:"certificate"`
	Key         string `json:"key"`

	tls *tls.Config
}

// patience is the timeout of a single step, after which the run has failed.
const patience = 20 * time.Second

// prepare reads the certificates, once for all clients of a run.
func (way *Way) prepare() error {
	if way.Kind != "https" {
		return nil
	}
	pair, err := tls.LoadX509KeyPair(way.Certificate, way.Key)
	if err != nil {
		return err
	}
	authority, err := os.ReadFile(way.Authority)
	if err != nil {
		return err
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(authority) {
		return fmt.Errorf("%s holds no certificate", way.Authority)
	}
	name, _, err := net.SplitHostPort(way.Host)
	way.tls = &tls.Config{Certificates: []tls.Certificate{pair}, RootCAs: roots, ServerName: name}
	return err
}

// Client is one connection to the backend.
type Client struct {
	net.Conn
	reader *bufio.Reader
	body   []byte // of the last response to a small request
}

// A small buffer: large reads of a body bypass it and go directly to the memory for the body.
const readerSize = 4096

func (way *Way) dial() (*Client, error) {
	network := "tcp"
	if way.Kind == "connect" {
		network = "unix"
	}
	raw, err := net.DialTimeout(network, way.Address, patience)
	if err != nil {
		return nil, err
	}
	if way.tls != nil {
		raw = tls.Client(raw, way.tls)
	}
	client := &Client{Conn: raw, reader: bufio.NewReaderSize(raw, readerSize)}
	if way.Kind == "connect" {
		err = client.connect(way.Host)
	}
	if err != nil {
		raw.Close()
		return nil, err
	}
	return client, nil
}

func (client *Client) connect(host string) error {
	client.SetDeadline(time.Now().Add(patience))
	if _, err := fmt.Fprintf(client, "CONNECT %s HTTP/1.1\r\nHost: %s\r\n\r\n", host, host); err != nil {
		return err
	}
	_, err := client.readHead()
	return err
}

// readHead reads the head of a response, which has to be 200, and returns the length of its body.
func (client *Client) readHead() (int, error) {
	status, err := client.reader.ReadSlice('\n')
	if err != nil {
		return 0, err
	}
	if len(status) < 12 || string(status[9:12]) != "200" {
		return 0, fmt.Errorf("answered %q", strings.TrimSpace(string(status)))
	}
	return readFields(client.reader)
}

// readFields reads header fields up to the empty line, and returns Content-Length, 0 without one.
func readFields(reader *bufio.Reader) (int, error) {
	length := 0
	const name = "content-length:"
	for {
		line, err := reader.ReadSlice('\n')
		if err != nil {
			return 0, err
		}
		if len(line) <= 2 {
			return length, nil
		}
		if len(line) > len(name) && strings.EqualFold(string(line[:len(name)]), name) {
			length, err = strconv.Atoi(strings.TrimSpace(string(line[len(name):])))
			if err != nil {
				return 0, err
			}
		}
	}
}
