package main

import (
	"bytes"
	"fmt"
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// ticksPerSecond is USER_HZ, in which /proc counts CPU time: 100 on every Linux port of Go.
const ticksPerSecond = 100

// Usage is the CPU time used up to a moment.
type Usage struct {
	at      time.Time
	tested  map[int]float64
	driver  float64
	machine float64
}

func usage(tested []int) Usage {
	used := Usage{tested: map[int]float64{}, driver: ownCPU(), machine: machineCPU()}
	for _, pid := range tested {
		used.tested[pid] = cpuOf(pid)
	}
	used.at = time.Now()
	return used
}

// since returns the time and the CPU seconds used since then.
func (before Usage) since(tested []int) *Result {
	seconds := time.Since(before.at).Seconds()
	after := usage(tested)
	result := &Result{
		Seconds: seconds, TestedCPU: map[int]float64{},
		DriverCPU: after.driver - before.driver, MachineCPU: after.machine - before.machine,
	}
	for _, pid := range tested {
		result.TestedCPU[pid] = after.tested[pid] - before.tested[pid]
	}
	return result
}

func ownCPU() float64 {
	var used syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &used); err != nil {
		return 0
	}
	return float64(used.Utime.Nano()+used.Stime.Nano()) / 1e9
}

// cpuOf returns the user and system time of a process: proc(5), stat, fields 14 and 15.
func cpuOf(pid int) float64 {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0
	}
	fields := bytes.Fields(text[bytes.LastIndexByte(text, ')')+1:])
	return ticks(string(fields[11])) + ticks(string(fields[12]))
}

// machineCPU returns the busy time of all processors: proc(5), stat, without idle and iowait.
func machineCPU() float64 {
	text, err := os.ReadFile("/proc/stat")
	if err != nil {
		return 0
	}
	line, _, _ := strings.Cut(string(text), "\n")
	busy := 0.0
	for i, field := range strings.Fields(line)[1:9] {
		if i != 3 && i != 4 {
			busy += ticks(field)
		}
	}
	return busy
}

func ticks(text string) float64 {
	count, err := strconv.ParseFloat(text, 64)
	if err != nil {
		return 0
	}
	return count / ticksPerSecond
}
