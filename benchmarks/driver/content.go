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

// content passes on size bytes of the content with this number, piece by piece. Each number has
// another content: the same random block, begun elsewhere.
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

// Arena is memory for everything that a run receives, so that it can be hashed off the clock.
type Arena struct{ memory []byte }

// reserve has so many bytes in memory, not only promised by the kernel.
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

// part gives the room for stream number index, when each has size bytes.
func (arena *Arena) part(index, size int) []byte {
	return arena.memory[index*size : (index+1)*size]
}
