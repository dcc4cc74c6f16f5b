package main

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"os"
	"time"
)

// datagramSize is what a client sends and has sent back, in bytes.
const datagramSize = 64

// lost is when a datagram counts as lost, and the next one is sent.
const lost = time.Second

// mostLost is how many in a row a client may lose before the run has failed.
const mostLost = 5

// startEcho starts the backend of datagrams, which sends back what comes, and gives its port.
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
			// Any other error is of a client that is gone.
			if err == nil {
				echo.WriteToUDPAddrPort(buffer[:size], from)
			}
		}
	}()
	return echo.LocalAddr().(*net.UDPAddr).Port, nil
}

// datagrams has clients that send a datagram and wait until it comes back, again and again.
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
