// Draws shared by all rows, under a mixture; and rows with a single missing number, which need no draws.
//
// Missing values are independent of observed ones given the component, and all rows share the same points. So in each
// component a draw has the same values for every row, and its side of each split is tabulated once. A row only decides which
// draws belong to which component: O(splits that branch for the row * components that have draws).
#include "module.hpp"
#include "monte_carlo.hpp"

namespace {

// The most thresholds that one byte can count; variables with more thresholds take more bytes.
constexpr Index PER_OCTET = 255;
// Components with a smaller share of a row are left out of a mean over cells.
constexpr double LEAST_SHARE = 1e-10;

// The draws of a word (components, variables, 64) in each component: in places (components, slots, DRAWS) the number of
// thresholds at or below a draw, as far as a byte counts; in masks (components, set nodes, LANES) the draws that go left at
// splits with masks of their own. The bytes of variable v are slots from first_slot[v] on.
void fill_components(nb::object draws_, nb::object forest_, nb::object first_slot_, Index word, nb::object places_, nb::object masks_) {
    Arguments arguments;
    auto forest = arguments.record<Forest>("forest", forest_);
    auto draws = arguments.array<const double, 3>("draws", draws_, {"components", Dim::at_least("variables"), int(WORD)});
    auto first_slot = arguments.array<const std::int64_t, 1>("first_slot", first_slot_, {Dim("variables", 1)});
    auto places = arguments.array<std::uint8_t, 3>("places", places_, {"components", "slots", int(DRAWS)});
    auto masks = arguments.array<Word, 3>("masks", masks_, {"components", "set nodes", int(LANES)});
    arguments.require(word >= 0 && word < LANES, "word must be one of four");
    arguments.require(first_slot(first_slot[0] - 1) <= places[1], "places must have all slots");
    forest.look.check();
    forest.check_sets();
    nb::gil_scoped_release unlocked;
    const Lookup& look = forest.look;
    for (Index k = 0; k < draws[0]; ++k) {
        for (Index i = 0; i < forest.set_nodes[0]; ++i) {
            const Index node = forest.set_nodes(i);
            const double* own = draws.at(k, forest.nodes.feature(node));
            Word goes = 0;
            for (Index draw = 0; draw < WORD; ++draw) goes |= Word(!forest.nodes.observed_right(own[draw], node)) << draw;
            masks(k, i, word) = goes;
        }
        for (Index v = 0; v < look.used[0]; ++v) {
            if (!look.used(v) || look.n_levels(v) > 0) continue;
            std::uint32_t found[WORD];
            all_first_above(draws.at(k, v), v, look, found);
            for (Index draw = 0; draw < WORD; ++draw) {
                Index place = Index(found[draw]) - Index(look.start(v));
                if (draws(k, v, draw) == INF) place = look.offset(v + 1) - look.offset(v);
                for (Index slot = first_slot(v); slot < first_slot(v + 1); ++slot) {
                    places(k, slot, word * WORD + draw) = std::uint8_t(std::clamp<Index>(place, 0, PER_OCTET));
                    place -= PER_OCTET;
                }
            }
        }
    }
}

// Draws in each component, the same for all rows, by fours of words.
struct SharedDraws {
    View<const std::uint8_t, 4> cells;  // (fours, components, slots, DRAWS) number of thresholds at or below a draw
    View<const Word, 4> masks;          // (fours, components, set nodes, LANES) draws that go left at splits with own masks
    View<const double, 2> uniform;      // (fours, DRAWS) sorted numbers that choose the components of draws
    View<const Word, 3> lowest;         // (fours, DRAWS + 1, LANES) the draws with the 0, 1, ... lowest of them
    View<const double, 3> status;       // (fours, nullable variables, DRAWS) the same for the numbers that choose
    View<const Word, 4> below;          // (fours, nullable variables, DRAWS + 1, LANES) what is not recorded

    template <class Reader>
    static void fields(SharedDraws& self, Reader& read) {
        read("cells", self.cells, {"fours", "components", "slots", int(DRAWS)});
        read("masks", self.masks, {"fours", "components", "set nodes", int(LANES)});
        read("uniform", self.uniform, {"fours", int(DRAWS)});
        read("lowest", self.lowest, {"fours", int(DRAWS) + 1, int(LANES)});
        read("status", self.status, {"fours", "rows of status", int(DRAWS)});
        read("below", self.below, {"fours", "rows of status", int(DRAWS) + 1, int(LANES)});
    }
};

// Odds of missing values of nullable variables, and the splits on these variables.
struct DrawOdds {
    View<const double, 3> odds;          // (rows, hypotheses, nullable variables), infinite if not recorded; (0, 0, 0) if there are none
    View<const double, 2> not_recorded;  // (nullable variables, components) the probability of "not recorded"
    View<const std::int64_t, 1> variable;  // (rows of masks,) the nullable variable that a split is on, or -1
    View<const bool, 1> goes_left;         // (rows of masks,) whether "not recorded" goes left

    template <class Reader>
    static void fields(DrawOdds& self, Reader& read) {
        read("odds", self.odds, {Dim::any(), Dim::any(), Dim::any()});
        read("not_recorded", self.not_recorded, {"nullable variables", "components"});
        read("variable", self.variable, {"rows of masks"});
        read("goes_left", self.goes_left, {"rows of masks"});
    }
};

// The components and hypotheses that have draws, and their draws.
struct Chosen {
    Index n = 0;
    Index component[DRAWS + 1], hypothesis[DRAWS + 1];
    Scratch<Word> part = Scratch<Word>((DRAWS + 1) * LANES);
    Scratch<std::uint8_t> bytes = Scratch<std::uint8_t>(DRAWS * DRAWS);  // ones for the draws of each

    // Given the shares: each component has the draws whose first coordinate lies in its part of (0, 1), and the last
    // possible one has the rest.
    void choose(const double* share, Index n_shares, Index n_components, const double* uniform, const Word* lowest) {
        Index last = n_shares - 1;
        while (last > 0 && !(share[last] > 0.0)) --last;
        double reached = 0.0;
        Index before = 0;
        n = 0;
        for (Index k = 0; k <= last; ++k) {
            reached += share[k];
            Index now = k == last ? DRAWS : before;
            while (now < DRAWS && uniform[now] < reached) ++now;
            component[n] = k % n_components, hypothesis[n] = k / n_components;
            const FourWords draws = load_words(lowest + LANES * now) ^ load_words(lowest + LANES * before);
            store_words(part.data() + LANES * n, draws);
            n += now > before;
            before = now;
        }
        for (Index i = 0; i < n * LANES; ++i) bytes_of(part[i], bytes.data() + i * WORD);
    }
};

// Masks of the splits of a row, combined from those of its components.
class Sides {
    std::vector<Index> asked;  // (slots,) when the bytes of draws were last computed
    Scratch<std::uint8_t> mixed;
    Scratch<Word> forced;
    Index now = 0;

  public:
    Scratch<Word> masks;

    Sides(const SharedDraws& shared, const DrawOdds& telling, Index n_masks)
        : asked(shared.cells[2]), mixed(shared.cells[2] * DRAWS), forced(telling.not_recorded[0] * LANES), masks(n_masks * LANES) {}

    template <class Step>
    void tell(const Division<Step>& division, const Chosen& chosen, Index four, const SharedDraws& shared, const std::int64_t* places) {
        const Index first_own = Index(masks.size()) / LANES - shared.masks[2];
        ++now;
        for (Index s = 0; s < division.n_splits; ++s) {
            const Index row = division.splits[s].row;
            if (row < first_own) {
                const Index slot = places[row] >> 8;
                Arguments::require(slot < Index(asked.size()), "places must be in slots");
                std::uint8_t* own = mixed.data() + slot * DRAWS;
                if (asked[slot] != now) {
                    asked[slot] = now;
                    mix(chosen, four, slot, shared, own);
                }
                for (Index lane = 0; lane < LANES; ++lane) masks[LANES * row + lane] = below(own + lane * WORD, std::uint8_t(places[row]));
            } else {
                FourWords goes = {0, 0, 0, 0};
                for (Index i = 0; i < chosen.n; ++i) {
                    const Word* theirs = shared.masks.at(four, chosen.component[i], row - first_own);
                    goes |= load_words(theirs) & load_words(chosen.part.data() + LANES * i);
                }
                store_words(masks.data() + LANES * row, goes);
            }
        }
    }

    // Choose the draws in which a variable is not recorded, according to its odds, and send them where "not recorded" goes
    // at the splits of the row. Given the component, nothing was recorded with probability 1 / (1 + odds of the rest);
    // otherwise the component's own draw is used.
    template <class Step>
    void force(const Division<Step>& division, const Chosen& chosen, Index four, const SharedDraws& shared, const DrawOdds& telling, Index row) {
        for (Index u = 0; u < telling.odds[2]; ++u) {
            FourWords told = {0, 0, 0, 0};
            for (Index i = 0; i < chosen.n; ++i) {
                const double more = (telling.odds(row, chosen.hypothesis[i], u) - 1.0) * telling.not_recorded(u, chosen.component[i]);
                if (!(more > 0.0)) continue;
                const double share = more == INF ? 1.0 : more / (1.0 + more), *status = shared.status.at(four, u);
                const Index count = std::lower_bound(status, status + DRAWS, share) - status;
                told |= load_words(chosen.part.data() + LANES * i) & load_words(shared.below.at(four, u, count));
            }
            store_words(forced.data() + LANES * u, told);
        }
        for (Index s = 0; s < division.n_splits; ++s) {
            const Index mask = division.splits[s].row, u = telling.variable(mask);
            if (u < 0) continue;
            const FourWords draws = load_words(forced.data() + LANES * u), with_them = load_words(masks.data() + LANES * mask) | draws;
            store_words(masks.data() + LANES * mask, telling.goes_left(mask) ? with_them : with_them ^ draws);
        }
    }

  private:
    // The bytes of draws, each from the component of the draw.
    static void mix(const Chosen& chosen, Index four, Index slot, const SharedDraws& shared, std::uint8_t* out) {
        typedef std::uint8_t Octets __attribute__((vector_size(32)));
        constexpr Index N = DRAWS / Index(sizeof(Octets));
        Octets sum[N] = {};
        for (Index i = 0; i < chosen.n; ++i) {
            const std::uint8_t *theirs = shared.cells.at(four, chosen.component[i], slot), *own = chosen.bytes.data() + i * DRAWS;
            for (Index j = 0; j < N; ++j) {
                Octets place, ones;
                std::memcpy(&place, theirs + j * sizeof place, sizeof place);
                std::memcpy(&ones, own + j * sizeof ones, sizeof ones);
                sum[j] |= place & ones;
            }
        }
        std::memcpy(out, sum, sizeof sum);
    }
};

// Margins of shared draws, from a word on, out (rows, words, 64, outputs). share (rows, hypotheses x components) has the
// probability of each; places (rows of thresholds,) the place of a threshold in its byte, plus 256 times its slot.
void fill_shared_margins(nb::object share_, nb::object sets_, nb::object shared_, Index first, nb::object telling_, nb::object places_,
                         nb::object small_, nb::object leaves_, nb::object out_) {
    with_step_type(leaves_, [&](auto step) {
        using Step = decltype(step);
        Arguments arguments;
        auto share = arguments.array<const double, 2>("share", share_, {"rows", "shares"});
        auto sets = arguments.array<const Word, 2>("sets", sets_, {"rows", "trees"});
        auto shared = arguments.record<SharedDraws>("shared", shared_);
        auto telling = arguments.record<DrawOdds>("telling", telling_);
        auto places = arguments.array<const std::int64_t, 1>("places", places_, {"rows of thresholds"});
        auto small = arguments.record<SmallTrees>("small", small_);
        auto leaves = arguments.record<LeafValues<Step>>("leaves", leaves_);
        auto out = arguments.array<double, 4>("out", out_, {"rows", "words", int(WORD), "outputs"});
        const Index n_components = shared.cells[1], n_masks = telling.variable[0];
        const bool tells = telling.odds.size() > 0;
        leaves.check(small);
        arguments.require(first >= 0 && first + out[1] <= LANES * shared.cells[0], "shared must have all words of out");
        arguments.require(n_components > 0 && share[1] > 0 && share[1] % n_components == 0, "share must have a number for each component");
        arguments.require(n_masks == places[0] + 1 + shared.masks[2], "variable must have a number for each row of masks");
        if (tells) {
            arguments.require(telling.odds[0] == share[0] && telling.odds[1] * n_components == share[1] &&
                                  telling.odds[2] == telling.not_recorded[0] && telling.odds[2] <= shared.status[1],
                              "odds must be of the rows, hypotheses and nullable variables");
        }
        nb::gil_scoped_release unlocked;
        Division<Step> division(sets, out[3]);
        Chosen chosen;
        Sides sides(shared, telling, n_masks);
        for (Index row = 0; row < out[0]; ++row) {
            division.list(sets.at(row), small, leaves, n_masks);
            for (Index four = first / LANES; four * LANES < first + out[1]; ++four) {
                chosen.choose(share.at(row), share[1], n_components, shared.uniform.at(four), shared.lowest.at(four));
                sides.tell(division, chosen, four, shared, places.data);
                if (tells) sides.force(division, chosen, four, shared, telling, row);
                division.divide(LANES, sides.masks.data());
                division.write(small, leaves.unit, LANES, four * LANES - first, out.at(row), out[1]);
            }
        }
    });
}

// ---- a single missing number: no draws, and no error

// Margins (rows, cells, outputs) and masses (rows, cells) of rows with one missing number.
//
// Between two thresholds all values of the number have the same margin. It changes from one leaf of a tree's set to the next
// at the threshold between them. `first` is the first of the number's masks, mass (components, cells) the mass of each
// component in its cells. O(rows * (leaves in the sets + components * cells)).
void fill_cells(nb::object sets_, nb::object share_, nb::object small_, nb::object leaves_, Index first, nb::object mass_,
                nb::object margins_, nb::object weight_) {
    Arguments arguments;
    auto sets = arguments.array<const Word, 2>("sets", sets_, {"rows", "trees"});
    auto share = arguments.array<const double, 2>("share", share_, {"rows", "components"});
    auto small = arguments.record<SmallTrees>("small", small_);
    auto leaves = arguments.record<LeafValues<double>>("leaves", leaves_);
    auto mass = arguments.array<const double, 2>("mass", mass_, {"components", "cells"});
    auto margins = arguments.array<double, 3>("margins", margins_, {"rows", "cells", "outputs"});
    auto weight = arguments.array<double, 2>("weight", weight_, {"rows", "cells"});
    leaves.check(small);
    nb::gil_scoped_release unlocked;
    const Index n_cells = weight[1], n_outputs = margins[2];
    if (n_cells == 0) return;
    for (Index row = 0; row < sets[0]; ++row) {
        std::fill_n(weight.at(row), n_cells, 0.0);
        for (Index k = 0; k < mass[0]; ++k) {
            if (share(row, k) < LEAST_SHARE) continue;
            for (Index cell = 0; cell < n_cells; ++cell) weight(row, cell) += share(row, k) * mass(k, cell);
        }
        double* own = margins.at(row);
        std::fill_n(own, n_cells * n_outputs, 0.0);
        std::copy_n(leaves.base.data, n_outputs, own);
        for (Index t = 0; t < small.n_trees(); ++t) {
            const Index output = small.output(t);
            Word rest = sets(row, t);
            int last = lowest_bit(rest);
            own[output] += leaves.value(t, last);
            for (rest &= rest - 1; rest != 0; rest &= rest - 1) {
                const int bit = lowest_bit(rest);
                const Index node = small.parting(t, last, bit), cell = Index(small.node(t, node, 1)) - first;
                Arguments::require(cell >= 0 && cell < n_cells, "sets must part at thresholds of the number");
                own[cell * n_outputs + output] += leaves.value(t, bit) - leaves.value(t, last);
                last = bit;
            }
        }
        for (Index i = n_outputs; i < n_cells * n_outputs; ++i) own[i] += own[i - n_outputs];
    }
}

// Means of values (rows, cells, outputs), weighted (rows, cells).
void add_cells(nb::object weight_, nb::object values_, nb::object out_) {
    Arguments arguments;
    auto weight = arguments.array<const double, 2>("weight", weight_, {"rows", "cells"});
    auto values = arguments.array<const double, 3>("values", values_, {"rows", "cells", "outputs"});
    auto out = arguments.array<double, 2>("out", out_, {"rows", "outputs"});
    nb::gil_scoped_release unlocked;
    for (Index row = 0; row < out[0]; ++row) {
        double whole = 0.0;
        for (Index cell = 0; cell < weight[1]; ++cell) whole += weight(row, cell);
        for (Index cell = 0; cell < weight[1]; ++cell) {
            const double part = weight(row, cell) / whole;
            for (Index output = 0; output < out[1]; ++output) out(row, output) += part * values(row, cell, output);
        }
    }
}

}  // namespace

void bind_shared_draws(nb::module_& m) {
    m.def("fill_components", &fill_components, nb::arg("draws"), nb::arg("forest"), nb::arg("first_slot"), nb::arg("word"),
          nb::arg("places"), nb::arg("masks"), "The draws of a word in each component.");
    m.def("fill_shared_margins", &fill_shared_margins, nb::arg("share"), nb::arg("sets"), nb::arg("shared"), nb::arg("first"),
          nb::arg("telling"), nb::arg("places"), nb::arg("small"), nb::arg("leaves"), nb::arg("out"),
          "Margins of shared draws, (rows, words, 64, outputs).");
    m.def("fill_cells", &fill_cells, nb::arg("sets"), nb::arg("share"), nb::arg("small"), nb::arg("leaves"), nb::arg("first"),
          nb::arg("mass"), nb::arg("margins"), nb::arg("weight"), "Margins and masses between the thresholds of a single missing number.");
    m.def("add_cells", &add_cells, nb::arg("weight"), nb::arg("values"), nb::arg("out"), "Weighted means over cells.");
}
