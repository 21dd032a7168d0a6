// Scrambled Sobol points as the randomness of draws: how draws are grouped, and the hash that scrambles them.
//
// A word of 64 draws is GROUPS groups of SIZE. Each group has its own Sobol sequence, xor-ed with random bits that are a
// hash of (seed, key, group, coordinate): see knothole.sobol. All of this is integers: the same on every machine.
#pragma once
#include "views.hpp"

// Draws in a word, independent groups of them, and points of a group in a word.
constexpr Index WORD = 64, GROUPS = 8, SIZE = WORD / GROUPS;

constexpr Word GOLDEN = 0x9E3779B97F4A7C15;

// The finaliser of splitmix64: every bit of the result depends on every bit of the state.
inline Word mix(Word state) {
    state = (state ^ (state >> 30)) * 0xBF58476D1CE4E5B9;
    state = (state ^ (state >> 27)) * 0x94D049BB133111EB;
    return state ^ (state >> 31);
}

// The random state of a key.
inline Word state_of(Word seed, Word key) { return mix(mix(seed + GOLDEN) ^ (key * GOLDEN + 1)); }

// 32 random bits for one coordinate, of a group or of a draw.
inline std::uint32_t bits_of(Word state, Index number, Index coordinate) {
    const Word place = (Word(coordinate) << 20) + Word(number + 1);
    return std::uint32_t(mix(state + place * GOLDEN) >> 32);
}

// The uniform number of 32 random bits, (bits + 1/2) / 2^32: never 0 or 1. By way of signed integers, which processors
// convert directly; exact.
inline double uniform_of(std::uint32_t bits) { return (std::int32_t(bits ^ 0x80000000u) + (0x1p31 + 0.5)) * 0x1p-32; }
