package main

import (
	"crypto/sha256"
	"math/rand"
)

const blockSize = 4 << 20

var block = makeBlock()

func makeBlock() []byte {
	made := make([]byte, blockSize)
	rand.New(rand.NewSource(1)).Read(made)
	return made
}

// content passes size bytes of the content with this number, piece by piece. Each number has
// different content: the same random block from another offset.
func content(number, size int, pass func([]byte) error) error {
	position := number * 4099 % blockSize
	for size > 0 {
		end := min(position+size, blockSize)
		if err := pass(block[position:end]); err != nil {
			return err
		}
		size -= end - position
		position = end % blockSize
	}
	return nil
}

func digestOfContent(number, size int) [sha256.Size]byte {
	hash := sha256.New()
	content(number, size, func(piece []byte) error {
		hash.Write(piece)
		return nil
	})
	return [sha256.Size]byte(hash.Sum(nil))
}

// Arena is memory for all data that a run receives, to hash it outside the measured time.
type Arena struct{ memory []byte }

// reserve allocates size bytes, and touches each page so that the kernel backs it with memory.
func (arena *Arena) reserve(size int) {
	if len(arena.memory) >= size {
		return
	}
	arena.memory = make([]byte, size)
	const page = 4096
	for i := 0; i < size; i += page {
		arena.memory[i] = 1
	}
}

// part returns the memory for stream number index, when each has size bytes.
func (arena *Arena) part(index, size int) []byte {
	return arena.memory[index*size : (index+1)*size]
}
