// Monte Carlo: draws of a row's missing values pass through all trees as bits of words.
//
// For every threshold of a missing number, and every code of a missing category, a mask marks the draws that go left: O(draws
// * (missing values + splits that branch for the row)). Larger trees are walked from their roots. Expected margins need only
// sums over groups of draws. If all splits are plain, these are computed word by word without masks, since few splits lie
// between the least and the largest draw of a word.
#include "module.hpp"
#include "monte_carlo.hpp"

namespace {

// ---- masks: which draws go left

struct Masks {
    Scratch<Word> masks, absent;  // (rows of masks, LANES); (variables, LANES) draws in which a number is not recorded

    explicit Masks(const Forest& forest) : masks(forest.n_masks() * LANES), absent(forest.look.used[0] * LANES) {}

    // The mask of a split with a row of its own, from the masks of codes or of its threshold.
    void fill_own(Index node, const Forest& forest) {
        const NodeArrays& nodes = forest.nodes;
        const Index v = nodes.feature(node), set_start = nodes.set_start(node);
        FourWords goes = load_words(masks.data() + LANES * forest.threshold_row(node));
        if (nodes.missing_left(node)) goes |= load_words(absent.data() + LANES * v);
        for (Index code = 0; code < forest.look.n_levels(v); ++code)
            if (has(nodes.sets.data, set_start, code)) goes |= load_words(masks.data() + LANES * (forest.look.offset(v) + code));
        store_words(masks.data() + LANES * forest.mask_row(node), goes);
    }

    // The masks of those listed splits that have rows of their own.
    template <class Step>
    void fill_listed(const Forest& forest, const Division<Step>& division) {
        if (forest.set_nodes[0] == 0) return;
        for (Index s = 0; s < division.n_splits; ++s) {
            const Index own = division.splits[s].row - forest.first_own();
            if (own >= 0) fill_own(forest.set_nodes(own), forest);
        }
    }
};

// Masks of some words of a row's draws (variables, n_draws), up to four together. For a missing number: the draws below
// each threshold; for a missing category: those with each code. Masks of observed variables are not written.
void fill_masks(const double* x, const double* draws, Index n_draws, Index first_word, Index lanes, const Lookup& look, Masks& out) {
    Word *masks = out.masks.data(), *absent = out.absent.data();
    for (Index v = 0; v < look.used[0]; ++v) {
        if (!look.used(v) || !std::isnan(x[v])) continue;
        const Index first = look.offset(v), stop = look.offset(v + 1), to_row = first + 1 - Index(look.start(v));
        std::fill(masks + LANES * first, masks + LANES * stop, Word(0));
        std::fill_n(absent + LANES * v, LANES, Word(0));
        for (Index lane = 0; lane < lanes; ++lane) {
            const double* values = draws + v * n_draws + (first_word + lane) * WORD;
            if (look.n_levels(v) > 0) {
                const double last = double(stop - first - 1);  // codes beyond it, of wrong arrays, are taken for it
                for (Index draw = 0; draw < WORD; ++draw)
                    masks[LANES * (first + Index(std::max(0.0, std::min(last, values[draw])))) + lane] |= Word(1) << draw;
                continue;
            }
            std::uint32_t found[WORD];
            all_first_above(values, v, look, found);
            for (Index draw = 0; draw < WORD; ++draw) {
                Word* mask = values[draw] == INF ? absent + LANES * v : masks + LANES * (Index(found[draw]) + to_row);
                mask[lane] |= Word(1) << draw;
            }
        }
        if (look.n_levels(v) > 0) continue;
        FourWords below = {0, 0, 0, 0};
        for (Index row = first; row < stop; ++row) {
            below |= load_words(masks + LANES * row);
            store_words(masks + LANES * row, below);
        }
    }
}

// ---- large trees: draws walk from the roots

// The leaves that a row's draws reach, tree by tree: those of tree t before stop[t].
struct Walk {
    std::vector<Index> stop;
    std::vector<std::int32_t> leaf;
    Scratch<Word> draws;  // (entries, LANES)
    struct Waiting {
        Index node;
        Word a, b, c, d;
    };
    std::vector<Waiting> stack;

    void walk(const double* x, Index lanes, const Forest& forest, Masks& masks) {
        const NodeArrays& nodes = forest.nodes;
        const Index first_own = forest.first_own();
        const auto full = [&](Index lane) { return lane < lanes ? ALL : Word(0); };
        stop.clear(), leaf.clear(), draws.clear();
        for (Index tree = 0; tree < forest.n_trees(); ++tree) {
            stack.push_back({Index(nodes.roots(tree)), full(0), full(1), full(2), full(3)});
            while (!stack.empty()) {
                auto [node, a, b, c, d] = stack.back();
                stack.pop_back();
                node = nodes.follow(x, node, forest.plain);
                while (!nodes.is_leaf(node)) {
                    const Index row = forest.mask_row(node);
                    if (row >= first_own) masks.fill_own(node, forest);
                    const Word* mask = masks.masks.data() + LANES * row;
                    const Index left = nodes.left(node);
                    const Word e = mask[0] & a, f = mask[1] & b, g = mask[2] & c, h = mask[3] & d;
                    const Word goes = e | f | g | h, stays = (a ^ e) | (b ^ f) | (c ^ g) | (d ^ h);
                    if (goes != 0 && stays != 0) {
                        stack.push_back({left + 1, a ^ e, b ^ f, c ^ g, d ^ h});
                        a = e, b = f, c = g, d = h;
                    }
                    node = nodes.follow(x, left + (goes == 0), forest.plain);
                }
                leaf.push_back(nodes.left(node));
                for (Word word : {a, b, c, d}) draws.push_back(word);
            }
            stop.push_back(Index(leaf.size()));
        }
    }
};

// Margins of draws that walked the trees, for some words from `word` on; out (words, 64, outputs).
void write_walked(const Walk& walk, const Forest& forest, const LeafValues<double>& leaves, Index lanes, Index word, double* out) {
    const Index n_outputs = leaves.base[0], width = leaves.value[1];
    for (Index i = word * WORD; i < (word + lanes) * WORD; ++i) std::copy_n(leaves.base.data, n_outputs, out + i * n_outputs);
    Scratch<double> step(walk.leaf.size() + 1);
    Scratch<Word> words(walk.leaf.size() + 1);
    Index t = 0;
    while (t < forest.n_trees()) {
        const Index first = t > 0 ? walk.stop[t - 1] : 0, output = forest.tree_output(t);
        while (t < forest.n_trees() && forest.tree_output(t) == output) ++t;
        const Index n = walk.stop[t - 1] - first;
        for (Index lane = 0; lane < lanes; ++lane) {
            for (Index entry = 0; entry < n; ++entry) words[entry] = walk.draws[LANES * (first + entry) + lane];
            for (Index j = 0; j < width; ++j) {
                for (Index entry = 0; entry < n; ++entry) step[entry] = leaves.value(walk.leaf[first + entry], j);
                double total[WORD] = {};
                add_where(total, words.data(), step.data(), n);
                for (Index draw = 0; draw < WORD; ++draw) out[((word + lane) * WORD + draw) * n_outputs + output + j] += total[draw];
            }
        }
    }
}

// ---- margins

// Margins of rows' own draws, out (rows, words, 64, outputs). small and sets (rows, trees) are None where trees are walked.
void fill_margins(nb::object points_, nb::object sets_, nb::object draws_, nb::object forest_, nb::object small_, nb::object leaves_,
                  nb::object out_) {
    with_step_type(leaves_, [&](auto step) {
        using Step = decltype(step);
        Arguments arguments;
        auto forest = arguments.record<Forest>("forest", forest_);
        auto points = arguments.array<const double, 2>("points", points_, {"rows", Dim::at_least("variables")});
        auto draws = arguments.array<const double, 3>("draws", draws_, {"rows", Dim::at_least("variables"), "draws"});
        auto leaves = arguments.record<LeafValues<Step>>("leaves", leaves_);
        auto out = arguments.array<double, 4>("out", out_, {"rows", "words", int(WORD), "outputs"});
        arguments.require(draws[2] >= WORD * out[1], "draws must have 64 for each word of out");
        forest.check();
        if (small_.is_none()) {
            leaves.check(forest);
            if constexpr (std::is_same_v<Step, double>) {
                nb::gil_scoped_release unlocked;
                Masks masks(forest);
                Walk walk;
                for (Index row = 0; row < out[0]; ++row)
                    for (Index word = 0; word < out[1]; word += LANES) {
                        const Index lanes = std::min(LANES, out[1] - word);
                        fill_masks(points.at(row), draws.at(row), draws[2], word, lanes, forest.look, masks);
                        walk.walk(points.at(row), lanes, forest, masks);
                        write_walked(walk, forest, leaves, lanes, word, out.at(row));
                    }
            } else {
                arguments.require(false, "values of leaves must be float64 where trees are walked");
            }
            return;
        }
        auto small = arguments.record<SmallTrees>("small", small_);
        auto sets = arguments.array<const Word, 2>("sets", sets_, {"rows", "trees"});
        leaves.check(small);
        nb::gil_scoped_release unlocked;
        Masks masks(forest);
        Division<Step> division(sets, out[3]);
        for (Index row = 0; row < out[0]; ++row) {
            division.list(sets.at(row), small, leaves, forest.n_masks());
            for (Index word = 0; word < out[1]; word += LANES) {
                const Index lanes = std::min(LANES, out[1] - word);
                fill_masks(points.at(row), draws.at(row), draws[2], word, lanes, forest.look, masks);
                masks.fill_listed(forest, division);
                division.divide(lanes, masks.masks.data());
                division.write(small, leaves.unit, lanes, word, out.at(row), out[1]);
            }
        }
    });
}

// Margins of rows' own draws, summed over groups of draws: out (rows, groups, outputs). For small trees whose splits are
// plain, given the leaves that each word can reach, sets (rows, words, trees): draws are compared with the thresholds between
// these leaves, and the bits of each group are counted.
void fill_group_sums(nb::object sets_, nb::object draws_, nb::object forest_, nb::object small_, nb::object leaves_, nb::object out_) {
    Arguments arguments;
    auto forest = arguments.record<Forest>("forest", forest_);
    auto sets = arguments.array<const Word, 3>("sets", sets_, {"rows", "words", "trees"});
    auto draws = arguments.array<const double, 3>("draws", draws_, {"rows", Dim::at_least("variables"), "draws"});
    auto small = arguments.record<SmallTrees>("small", small_);
    auto leaves = arguments.record<LeafValues<double>>("leaves", leaves_);
    auto out = arguments.array<double, 3>("out", out_, {"rows", int(GROUPS), "outputs"});
    arguments.require(draws[2] >= WORD * sets[1], "draws must have 64 for each word of sets");
    forest.check();
    leaves.check(small);
    nb::gil_scoped_release unlocked;
    const Index n_trees = small.n_trees();
    Division<double> division(View<const Word, 2>{sets.data, {sets[0] * sets[1], sets[2]}}, out[2]);
    Word* words = division.draws.data();
    for (Index row = 0; row < out[0]; ++row) {
        std::fill_n(out.at(row), GROUPS * out[2], 0.0);
        for (Index word = 0; word < sets[1]; ++word) {
            division.list(sets.at(row, word), small, leaves, forest.row_variable[0]);
            const double* drawn = draws.at(row) + word * WORD;
            std::fill_n(words, n_trees, ALL);
            for (Index s = 0; s < division.n_splits; ++s) {
                const Split split = division.splits[s];
                const Word here = words[split.from];
                const Word left = here & below(drawn + draws[2] * forest.row_variable.data[split.row], forest.row_threshold.data[split.row]);
                words[split.from] = left;
                words[split.to] = here ^ left;
            }
            Index t = 0;
            for (Index output = 0; output < out[2]; ++output) {
                const Index entry = division.first[t];
                while (t < n_trees && small.output(t) == output) ++t;
                double total[GROUPS];
                std::fill_n(total, GROUPS, SIZE * division.start[output]);
                add_counts(total, words + entry, division.step.data() + entry, division.first[t] - entry);
                for (Index group = 0; group < GROUPS; ++group) out(row, group, output) += total[group];
            }
        }
    }
}

// ---- leaves that draws reach

struct Reached {
    View<std::int32_t, 1> leaf;
    View<Word, 1> mask;
    View<std::int64_t, 2> stop;  // (rows, trees) where the entries of each row's trees end

    template <class Reader>
    static void fields(Reached& self, Reader& read) {
        read("leaf", self.leaf, {"entries"});
        read("mask", self.mask, {"entries"});
        read("stop", self.stop, {"rows", "trees"});
    }
};

// Write the leaves that a word of each row's draws reaches, with the bits of these draws, for rows from `row` on until there
// is no room for another. Returns the number of entries and the next row.
nb::tuple fill_reached(nb::object points_, nb::object sets_, nb::object draws_, Index word, nb::object forest_, nb::object small_,
                       nb::object leaves_, Index row, nb::object out_) {
    Arguments arguments;
    auto forest = arguments.record<Forest>("forest", forest_);
    auto points = arguments.array<const double, 2>("points", points_, {"rows", Dim::at_least("variables")});
    auto draws = arguments.array<const double, 3>("draws", draws_, {"rows", Dim::at_least("variables"), "draws"});
    auto leaves = arguments.record<LeafValues<double>>("leaves", leaves_);
    auto out = arguments.record<Reached>("out", out_);
    arguments.require(word >= 0 && row >= 0 && draws[2] >= WORD * (word + 1), "draws must have 64 for each word");
    forest.check();
    const bool divides = !small_.is_none();
    SmallTrees small;
    View<const Word, 2> sets{nullptr, {0, 0}};
    if (divides) {
        small = arguments.record<SmallTrees>("small", small_);
        sets = arguments.array<const Word, 2>("sets", sets_, {"rows", "trees"});
        leaves.check(small);
    } else {
        leaves.check(forest);
    }
    Index count = 0;
    {
        nb::gil_scoped_release unlocked;
        Masks masks(forest);
        Division<double> division(sets, leaves.base[0]);
        Walk walk;
        const Index begin = row;
        for (; row < points[0]; ++row) {
            fill_masks(points.at(row), draws.at(row), draws[2], word, 1, forest.look, masks);
            Index n;
            if (divides) {
                division.list(sets.at(row), small, leaves, forest.n_masks());
                masks.fill_listed(forest, division);
                division.divide(1, masks.masks.data());
                n = forest.n_trees() + division.n_splits;
            } else {
                walk.walk(points.at(row), 1, forest, masks);
                n = Index(walk.leaf.size());
            }
            if (count + n > out.leaf[0]) break;
            for (Index tree = 0; tree < forest.n_trees(); ++tree) {
                const auto put_entry = [&](Index leaf, Word mask) {
                    if (mask == 0) return;
                    out.leaf(count) = std::int32_t(leaf);
                    out.mask(count) = mask;
                    ++count;
                };
                if (divides) {
                    const Index t = small.place(tree);
                    Index entry = t, after = division.first[t];
                    for (Word rest = sets(row, t); rest != 0; rest &= rest - 1) {
                        put_entry(small.leaf(t, lowest_bit(rest)), division.draws[LANES * entry]);
                        entry = after++;
                    }
                } else {
                    for (Index entry = tree > 0 ? walk.stop[tree - 1] : 0; entry < walk.stop[tree]; ++entry)
                        put_entry(walk.leaf[entry], walk.draws[LANES * entry]);
                }
                out.stop(row, tree) = count;
            }
        }
        arguments.require(row > begin || row >= points[0], "out must have room for the entries of a row");
    }
    return nb::make_tuple(count, row);
}

// ---- statistics

// Number of draws, means of values and margins, centred sums of squares of margins and of products of both, the least and the
// largest value: for each group of draws.
constexpr int SUMMARY = 7;

// For one output; n_outputs is known at compile time if it is 1.
template <class N>
void summarise_output(const double* margins, const double* values, N n_outputs, Index words, bool corrects, double* out) {
    double *draws = out, *value = out + GROUPS, *margin = out + 2 * GROUPS, *square = out + 3 * GROUPS, *product = out + 4 * GROUPS,
           *least = out + 5 * GROUPS, *most = out + 6 * GROUPS;
    // Four draws of a group, of two halves.
    const auto four = [&](const double* x, Index word, Index group, Index half) {
        const double* first = x + (word * WORD + group * SIZE + half * AT_ONCE) * n_outputs;
        return Four{first[0], first[n_outputs], first[2 * n_outputs], first[3 * n_outputs]};
    };
    double middle = 0.0, centre = 0.0;
    for (Index group = 0; group < GROUPS; ++group) {
        Four sum = spread(0.0), of_margins = spread(0.0), low = spread(INF), high = spread(-INF);
        for (Index word = 0; word < words; ++word)
            for (Index half = 0; half < 2; ++half) {
                const Four x = four(values, word, group, half);
                sum = sum + x;
                of_margins = of_margins + four(margins, word, group, half);
                low = x < low ? x : low;
                high = x > high ? x : high;
            }
        draws[group] = double(words * SIZE);
        value[group] = total(sum) / draws[group];
        margin[group] = total(of_margins) / draws[group];
        least[group] = std::min(std::min(low[0], low[1]), std::min(low[2], low[3]));
        most[group] = std::max(std::max(high[0], high[1]), std::max(high[2], high[3]));
        centre += value[group] / GROUPS;
        middle += margin[group] / GROUPS;
    }
    for (Index group = 0; group < (corrects ? GROUPS : 0); ++group) {
        Four squares = spread(0.0), products = spread(0.0);
        for (Index word = 0; word < words; ++word)
            for (Index half = 0; half < 2; ++half) {
                const Four off = four(margins, word, group, half) - spread(middle);
                squares = squares + off * off;
                products = products + off * (four(values, word, group, half) - spread(centre));
            }
        square[group] = total(squares);
        product[group] = total(products);
    }
}

// Summaries of draws (rows, words, 64, outputs), out (rows, outputs, SUMMARY, groups). Squares and products are only
// computed if they are needed for corrections (`corrects`), and left unchanged otherwise.
void summarise(nb::object margins_, nb::object values_, bool corrects, nb::object out_) {
    Arguments arguments;
    auto margins = arguments.array<const double, 4>("margins", margins_, {"rows", "words", int(WORD), "outputs"});
    auto values = arguments.array<const double, 4>("values", values_, {"rows", "words", int(WORD), "outputs"});
    auto out = arguments.array<double, 4>("out", out_, {"rows", "outputs", SUMMARY, int(GROUPS)});
    nb::gil_scoped_release unlocked;
    const Index words = values[1], n_outputs = values[3];
    for (Index row = 0; row < values[0]; ++row)
        for (Index output = 0; output < n_outputs; ++output) {
            const double *own = margins.at(row) + output, *x = values.at(row) + output;
            if (n_outputs == 1) summarise_output(own, x, Constant<1>(), words, corrects, out.at(row, output));
            else summarise_output(own, x, n_outputs, words, corrects, out.at(row, output));
        }
}

}  // namespace

void bind_monte_carlo(nb::module_& m) {
    m.def("fill_margins", &fill_margins, nb::arg("points"), nb::arg("sets").none(), nb::arg("draws"), nb::arg("forest"),
          nb::arg("small").none(), nb::arg("leaves"), nb::arg("out"), "Margins of rows' own draws, (rows, words, 64, outputs).");
    m.def("fill_group_sums", &fill_group_sums, nb::arg("sets"), nb::arg("draws"), nb::arg("forest"), nb::arg("small"),
          nb::arg("leaves"), nb::arg("out"), "Margins summed over groups of draws, (rows, groups, outputs).");
    m.def("fill_reached", &fill_reached, nb::arg("points"), nb::arg("sets").none(), nb::arg("draws"), nb::arg("word"), nb::arg("forest"),
          nb::arg("small").none(), nb::arg("leaves"), nb::arg("row"), nb::arg("out"),
          "Leaves that a word of each row's draws reaches: the number of entries, and the next row.");
    m.def("summarise", &summarise, nb::arg("margins"), nb::arg("values"), nb::arg("corrects"), nb::arg("out"),
          "Sums over draws from which means are estimated, (rows, outputs, 7, groups).");
}
