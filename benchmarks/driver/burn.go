package main

import (
	"runtime"
	"syscall"
	"time"
	"unsafe"
)

const clockThreadCPU = 3 // CLOCK_THREAD_CPUTIME_ID of clock_gettime(2)

// burn uses the given CPU time, however long that takes on a busy machine.
func burn(cost time.Duration) {
	if cost <= 0 {
		return
	}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	for end := threadTime() + cost; threadTime() < end; {
	}
}

func threadTime() time.Duration {
	var now syscall.Timespec
	syscall.RawSyscall(syscall.SYS_CLOCK_GETTIME, clockThreadCPU, uintptr(unsafe.Pointer(&now)), 0)
	return time.Duration(now.Nano())
}
