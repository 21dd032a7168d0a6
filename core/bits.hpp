// Sets of codes or leaves as bits, in words of 64.
#pragma once
#include "views.hpp"

constexpr Word ALL = ~Word(0);

inline int lowest_bit(Word word) { return __builtin_ctzll(word); }
inline int highest_bit(Word word) { return 63 - __builtin_clzll(word); }
inline int popcount(Word word) { return __builtin_popcountll(word); }
// Whether a word has more than one bit set.
inline bool several(Word word) { return (word & (word - 1)) != 0; }
// Whether the set that starts at word `start` has a code.
inline bool has(const Word* words, Index start, Index code) { return words[start + (code >> 6)] >> (code & 63) & 1; }
inline void put(Word* words, Index start, Index code) { words[start + (code >> 6)] |= Word(1) << (code & 63); }
