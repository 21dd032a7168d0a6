// Leaf probabilities as sparse matrices: built from their entries, and multiplied with each other.
#include "module.hpp"

#include <algorithm>

namespace {

// Entries of a matrix: probability[i] belongs to row first[leaf[i]] + rows[row[i]].
struct Part {
    View<const std::int64_t, 1> rows;
    View<const std::int32_t, 1> row, leaf;
    View<const double, 1> probability;
    View<const std::int64_t, 1> first;

    Part(Arguments& arguments, nb::handle rows_, nb::handle row_, nb::handle leaf_, nb::handle probability_, nb::handle first_)
        : rows(arguments.array<const std::int64_t, 1>("rows", rows_, {"rows"})),
          row(arguments.array<const std::int32_t, 1>("row", row_, {"entries"})),
          leaf(arguments.array<const std::int32_t, 1>("leaf", leaf_, {"entries"})),
          probability(arguments.array<const double, 1>("probability", probability_, {"entries"})),
          first(arguments.array<const std::int64_t, 1>("first", first_, {"leaves"})) {}

    void check(Index n_places) const {
        Arguments::require(within(row, 0, rows[0]) && within(leaf, 0, first[0]), "entries must be of rows and leaves that are there");
        const auto last = [](View<const std::int64_t, 1> of) { return of[0] > 0 ? *std::max_element(of.data, of.data + of[0]) : 0; };
        Arguments::require(within(rows, 0, n_places) && within(first, 0, n_places) && (row[0] == 0 || last(rows) + last(first) < n_places),
                           "rows and first must name rows of the matrix");
    }
    Index place(Index i) const { return first(leaf(i)) + rows(row(i)); }
};

void count_entries(nb::object rows, nb::object row, nb::object leaf, nb::object probability, nb::object first, nb::object count_) {
    Arguments arguments;
    const Part part(arguments, rows, row, leaf, probability, first);
    auto count = arguments.array<std::int64_t, 1>("count", count_, {"matrix rows"});
    part.check(count[0]);
    nb::gil_scoped_release unlocked;
    for (Index i = 0; i < part.row[0]; ++i) count(part.place(i)) += part.probability(i) != 0;
}

void place_entries(nb::object rows, nb::object row, nb::object leaf, nb::object probability, nb::object first, nb::object next_,
                   nb::object out_leaf_, nb::object out_probability_) {
    Arguments arguments;
    const Part part(arguments, rows, row, leaf, probability, first);
    auto next = arguments.array<std::int64_t, 1>("next", next_, {"matrix rows"});
    auto out_leaf = arguments.array<std::int32_t, 1>("out_leaf", out_leaf_, {"placed"});
    auto out_probability = arguments.array<double, 1>("out_probability", out_probability_, {"placed"});
    part.check(next[0]);
    Arguments::require(within(next, 0, out_leaf[0] + 1), "next must be within the entries");
    nb::gil_scoped_release unlocked;
    for (Index i = 0; i < part.row[0]; ++i) {
        if (part.probability(i) == 0) continue;
        const Index at = next(part.place(i))++;
        if (at >= out_leaf[0]) continue;
        out_leaf(at) = part.leaf(i);
        out_probability(at) = part.probability(i);
    }
}

// gram += sum_n w_n r_n r_n' (upper part) and target += sum_n w_n r_n e_n', with r_n the leaf probabilities of row n:
// entries first[n] to first[n + 1]. O(rows * (leaves of a row)^2).
void add_products(nb::object first_, nb::object leaf_, nb::object probability_, nb::object rest_, nb::object row_weight_,
                  nb::object gram_, nb::object target_) {
    Arguments arguments;
    auto rest = arguments.array<const double, 2>("rest", rest_, {"rows", "width"});
    auto first = arguments.array<const std::int64_t, 1>("first", first_, {Dim("rows", 1)});
    auto leaf = arguments.array<const std::int32_t, 1>("leaf", leaf_, {"entries"});
    auto probability = arguments.array<const double, 1>("probability", probability_, {"entries"});
    auto row_weight = arguments.array<const double, 1>("row_weight", row_weight_, {"rows"});
    auto gram = arguments.array<double, 2>("gram", gram_, {"leaves", "leaves"});
    auto target = arguments.array<double, 2>("target", target_, {"leaves", "width"});
    for (Index row = 0; row < rest[0]; ++row)
        Arguments::require(first(row) >= 0 && first(row) <= first(row + 1) && first(row + 1) <= leaf[0], "first must ascend within entries");
    Arguments::require(within(leaf, 0, gram[0]), "leaf must be one of gram's");
    nb::gil_scoped_release unlocked;
    for (Index row = 0; row < rest[0]; ++row)
        for (Index i = first(row); i < first(row + 1); ++i) {
            const double weighted = row_weight(row) * probability(i);
            double *products = gram.at(leaf(i)), *sums = target.at(leaf(i));
            for (Index j = i; j < first(row + 1); ++j) products[leaf(j)] += weighted * probability(j);
            for (Index k = 0; k < rest[1]; ++k) sums[k] += weighted * rest(row, k);
        }
    for (Index i = 0; i < gram[0]; ++i)  // a row's leaves are unsorted
        for (Index j = 0; j < i; ++j) {
            gram(j, i) += gram(i, j);
            gram(i, j) = 0.0;
        }
}

}  // namespace

void bind_leaf_probabilities(nb::module_& m) {
    m.def("count_entries", &count_entries, nb::arg("rows"), nb::arg("row"), nb::arg("leaf"), nb::arg("probability"), nb::arg("first"),
          nb::arg("count"), "Count the nonzero entries of each row of the matrix.");
    m.def("place_entries", &place_entries, nb::arg("rows"), nb::arg("row"), nb::arg("leaf"), nb::arg("probability"), nb::arg("first"),
          nb::arg("next"), nb::arg("out_leaf"), nb::arg("out_probability"), "Write entries at the positions in next, which then move on.");
    m.def("add_products", &add_products, nb::arg("first"), nb::arg("leaf"), nb::arg("probability"), nb::arg("rest"),
          nb::arg("row_weight"), nb::arg("gram"), nb::arg("target"),
          "Add weighted products of leaf probabilities with each other (upper part) and with rest (rows, width).");
}
