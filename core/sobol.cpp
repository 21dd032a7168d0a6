// Uniform numbers of scrambled Sobol points, and hashes of rows: O(1) a number.
#include "sobol.hpp"

#include "module.hpp"

namespace {

// Uniform numbers for keys; coordinates beyond those of the net have random bits.
void fill_uniform(nb::object net_, Word seed, nb::object keys_, Index first_word, nb::object out_) {
    Arguments arguments;
    auto net = arguments.array<const std::uint32_t, 3>("net", net_, {"words", "net coordinates", int(SIZE)});
    auto keys = arguments.array<const Word, 1>("keys", keys_, {"keys"});
    auto out = arguments.array<double, 3>("out", out_, {"keys", "coordinates", "draws"});
    Arguments::require(out[2] == net[0] * WORD, "out must have 64 draws for each word of the net");
    nb::gil_scoped_release unlocked;
    for (Index n = 0; n < keys[0]; ++n) {
        const Word state = state_of(seed, keys(n));
        for (Index c = 0; c < out[1]; ++c) {
            std::uint32_t shift[GROUPS];
            for (Index g = 0; g < GROUPS; ++g) shift[g] = bits_of(state, g, c);
            for (Index w = 0; w < net[0]; ++w) {
                double* to = out.at(n, c) + w * WORD;
                if (c < net[1]) {
                    const std::uint32_t* points = net.at(w, c);
                    for (Index g = 0; g < GROUPS; ++g)
                        for (Index p = 0; p < SIZE; ++p) to[g * SIZE + p] = uniform_of(points[p] ^ shift[g]);
                } else {
                    const Index number = GROUPS + (first_word + w) * WORD;
                    for (Index t = 0; t < WORD; ++t) to[t] = uniform_of(bits_of(state, number + t, c));
                }
            }
        }
    }
}

// A hash of each row of words.
void fill_keys(nb::object words_, nb::object out_) {
    Arguments arguments;
    auto words = arguments.array<const Word, 2>("words", words_, {"rows", "words"});
    auto out = arguments.array<Word, 1>("out", out_, {"rows"});
    nb::gil_scoped_release unlocked;
    for (Index n = 0; n < words[0]; ++n) {
        Word state = Word(words[1]);
        for (Index i = 0; i < words[1]; ++i) state = mix(state ^ words(n, i)) + GOLDEN;
        out(n) = state;
    }
}

}  // namespace

void bind_sobol(nb::module_& m) {
    m.def("fill_uniform", &fill_uniform, nb::arg("net"), nb::arg("seed"), nb::arg("keys"), nb::arg("first_word"), nb::arg("out"),
          "Uniform numbers for keys: net (words, coordinates, points of a group), out (keys, coordinates, draws).");
    m.def("fill_keys", &fill_keys, nb::arg("words"), nb::arg("out"), "A hash of each row of words.");
}
