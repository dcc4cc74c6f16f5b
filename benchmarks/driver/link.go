package main

import (
	"net"
	"time"
)

// A link is a TCP proxy that emulates a long link: in each direction it forwards data with a delay of
// Delay seconds, and at most Rate bytes a second.
//
// It terminates TCP at both sides, so that neither connection sees the delay: neither slow start nor
// a window of the kernel limits the data in flight. What remains is the link itself and, for a
// program that multiplexes in one connection, the round trip of its own flow control.
type link struct {
	target string
	delay  time.Duration
	rate   float64
}

// queueSize is the number of bytes queued at the entry of the link, besides those in flight.
const queueSize = 1 << 20

const pieceSize = 64 << 10

// pieceLimit is the maximum number of pieces buffered for a receiver that does not read.
const pieceLimit = 2048

func startLink(command Command) (any, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	made := link{command.Target, seconds(command.Delay), command.Rate}
	go made.accept(listener)
	return map[string]int{"port": portOf(listener)}, nil
}

func (link link) accept(listener net.Listener) {
	for {
		near, err := listener.Accept()
		if err != nil {
			return
		}
		go link.join(near)
	}
}

func (link link) join(near net.Conn) {
	defer near.Close()
	far, err := net.DialTimeout("tcp", link.target, patience)
	if err != nil {
		return
	}
	defer far.Close()
	sideBySide(2, func(i int) error {
		if i == 0 {
			link.carry(near, far)
		} else {
			link.carry(far, near)
		}
		return nil
	})
}

type piece struct {
	data []byte
	due  time.Time
}

// carry forwards one direction until its end, which is delayed like the data.
func (link link) carry(from, to net.Conn) {
	pieces := make(chan piece, pieceLimit)
	delivered := make(chan struct{})
	go func() {
		deliver(pieces, from, to)
		close(delivered)
	}()
	queue := seconds(queueSize / link.rate)
	buffer := make([]byte, pieceSize)
	free := time.Now() // when the entry of the link will have sent everything in its queue
	for {
		time.Sleep(time.Until(free) - queue)
		count, err := from.Read(buffer)
		if now := time.Now(); free.Before(now) {
			free = now
		}
		free = free.Add(seconds(float64(count) / link.rate))
		if count > 0 {
			pieces <- piece{append([]byte(nil), buffer[:count]...), free.Add(link.delay)}
		}
		if err != nil {
			pieces <- piece{nil, free.Add(link.delay)}
			close(pieces)
			<-delivered
			return
		}
	}
}

// deliver writes pieces when they are due. If the receiver has closed, it closes the sender.
func deliver(pieces chan piece, from, to net.Conn) {
	for next := range pieces {
		time.Sleep(time.Until(next.due))
		if next.data == nil {
			to.(*net.TCPConn).CloseWrite()
		} else if _, err := to.Write(next.data); err != nil {
			from.Close()
		}
	}
}
