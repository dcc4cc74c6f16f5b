package main

import (
	"net"
	"time"
)

// A link is a TCP proxy that behaves like a long line: what comes in goes out Delay seconds
// later, each way, and no faster than Rate bytes a second.
//
// It ends TCP at both sides, so that neither TCP sees the delay: no slow start, no window of the
// kernel limits what is under way. What is left is the line itself, and for whoever multiplexes
// inside a connection, the time that its own flow control takes to hear from the other end.
type link struct {
	target string
	delay  time.Duration
	rate   float64
}

// queueSize is how many bytes wait at the entry of the line, beside what is under way on it.
const queueSize = 1 << 20

const pieceSize = 64 << 10

// pieceLimit bounds what is kept for a receiver that does not take what has arrived.
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

// carry takes bytes one way until their end, which arrives as late as they do.
func (link link) carry(from, to net.Conn) {
	pieces := make(chan piece, pieceLimit)
	delivered := make(chan struct{})
	go func() {
		deliver(pieces, from, to)
		close(delivered)
	}()
	queue := seconds(queueSize / link.rate)
	buffer := make([]byte, pieceSize)
	free := time.Now() // when the entry of the line will have sent what waits there
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

// deliver writes what is due. When nobody takes it any more, the sender is told by a close.
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
