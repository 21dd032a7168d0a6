// Uniform numbers of scrambled Sobol points, and hashes of rows: O(1) a number.
#include "sobol.hpp"

#include "module.hpp"
#include "normal.hpp"

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

// Standard normals of words of uniform numbers.
void fill_normals(nb::object uniform_, nb::object out_) {
    Arguments arguments;
    auto uniform = arguments.array<const double, 2>("uniform", uniform_, {"words", int(WORD)});
    auto out = arguments.array<double, 2>("out", out_, {"words", int(WORD)});
    for (Index i = 0; i < uniform.size(); ++i)
        Arguments::require(uniform.data[i] >= 0.0 && uniform.data[i] < 1.0, "uniform must be at least 0 and less than 1");
    nb::gil_scoped_release unlocked;
    const double* table = quantile_table();
    for (Index w = 0; w < uniform[0]; ++w) normals(uniform.at(w), table, out.at(w));
}

}  // namespace

void bind_sobol(nb::module_& m) {
    m.def("fill_uniform", &fill_uniform, nb::arg("net"), nb::arg("seed"), nb::arg("keys"), nb::arg("first_word"), nb::arg("out"),
          "Uniform numbers for keys: net (words, coordinates, points of a group), out (keys, coordinates, draws).");
    m.def("fill_keys", &fill_keys, nb::arg("words"), nb::arg("out"), "A hash of each row of words.");
    m.def("fill_normals", &fill_normals, nb::arg("uniform"), nb::arg("out"), "Standard normals of words of uniform numbers.");
}
