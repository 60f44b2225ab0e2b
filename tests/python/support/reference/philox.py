"""Philox4x32-10 (Salmon et al., 2011), and the random word of an element."""

import numpy as np

MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
WEYL = (0x9E3779B9, 0xBB67AE85)
LOW = np.uint64(0xFFFFFFFF)


def philox(counter, key, rounds=10):
    """Four words for each counter. `counter`: four arrays of 32-bit words; `key`: two words."""
    c = [np.asarray(word, np.uint64) for word in counter]
    k = list(key)
    for _ in range(rounds):
        first, second = c[0] * np.uint64(MULTIPLIERS[0]), c[2] * np.uint64(MULTIPLIERS[1])
        c = [
            (second >> np.uint64(32)) ^ c[1] ^ np.uint64(k[0]),
            second & LOW,
            (first >> np.uint64(32)) ^ c[3] ^ np.uint64(k[1]),
            first & LOW,
        ]
        k = [(k[0] + WEYL[0]) & 0xFFFFFFFF, (k[1] + WEYL[1]) & 0xFFFFFFFF]
    return [word.astype(np.uint32) for word in c]


def random_words(seed, step, index):
    """The random word of each element: `index` is its row-major position in the whole tensor."""
    index = np.asarray(index, np.uint64)
    position = index >> np.uint64(2)
    like = np.zeros_like(index)
    counter = (
        position & LOW,
        position >> np.uint64(32),
        like + np.uint64(step & 0xFFFFFFFF),
        like + np.uint64(step >> 32),
    )
    words = np.stack(philox(counter, (seed & 0xFFFFFFFF, seed >> 32)))
    return np.take_along_axis(words, (index & np.uint64(3)).astype(np.int64)[None], axis=0)[0]
