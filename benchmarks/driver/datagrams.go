package main

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"os"
	"time"
)

// datagramSize is the size of an echoed datagram in bytes.
const datagramSize = 64

// lost is the timeout after which a datagram counts as lost, and the next one is sent.
const lost = time.Second

// mostLost is the number of consecutive lost datagrams after which the run has failed.
const mostLost = 5

// startEcho starts the UDP backend, which echoes datagrams, and returns its port.
func startEcho(address string) (int, error) {
	echo, err := net.ListenUDP("udp", &net.UDPAddr{IP: net.ParseIP(address)})
	if err != nil {
		return 0, err
	}
	go func() {
		buffer := make([]byte, 65536)
		for {
			size, from, err := echo.ReadFromUDPAddrPort(buffer)
			if errors.Is(err, net.ErrClosed) {
				return
			}
			// Any other error is that of a client that has disconnected.
			if err == nil {
				echo.WriteToUDPAddrPort(buffer[:size], from)
			}
		}
	}()
	return echo.LocalAddr().(*net.UDPAddr).Port, nil
}

// datagrams runs clients that repeatedly send a datagram and wait for its echo.
func datagrams(command Command) (*Result, error) {
	return measured(command, func(number int, window Window, times *Times) error {
		client, err := net.Dial("udp", command.Way.Address)
		if err != nil {
			return err
		}
		defer client.Close()
		sent := bytes.Repeat([]byte{byte(number)}, datagramSize)
		received := make([]byte, datagramSize+1)
		for failures := 0; ; {
			began := time.Now()
			if !began.Before(window.end) {
				return nil
			}
			if _, err := client.Write(sent); err != nil {
				return err
			}
			client.SetReadDeadline(began.Add(lost))
			size, err := client.Read(received)
			if errors.Is(err, os.ErrDeadlineExceeded) {
				if failures++; failures == mostLost {
					return fmt.Errorf("%d datagrams in a row did not come back", failures)
				}
				continue
			}
			if err != nil {
				return err
			}
			if !bytes.Equal(received[:size], sent) {
				return fmt.Errorf("%d bytes came back that were not sent", size)
			}
			failures = 0
			times.note(window, began, time.Now())
		}
	})
}
