// Normal scores of values, and values of scores: O(COARSE + STRIDE) a value, without mispredicted branches.
#include "normal_scores.hpp"

#include "module.hpp"

#include <limits>

namespace {

// Scores of x, their variances and log base measures. Values that are not finite have z = NaN, variance and base measure 0.
void encode(nb::object x_, nb::object maps_, nb::object z_, nb::object variance_, nb::object base_) {
    Arguments arguments;
    auto x = arguments.array<const double, 2>("x", x_, {"rows", "columns"});
    auto maps = arguments.record<ScoreMaps>("maps", maps_);
    auto z = arguments.array<double, 2>("z", z_, {"rows", "columns"});
    auto variance = arguments.array<double, 2>("variance", variance_, {"rows", "columns"});
    auto base = arguments.array<double, 2>("base", base_, {"rows", "columns"});
    nb::gil_scoped_release unlocked;
    for (Index n = 0; n < x[0]; ++n)
        for (Index j = 0; j < x[1]; ++j) {
            const double value = x(n, j);
            variance(n, j) = 0.0;
            base(n, j) = 0.0;
            if (!std::isfinite(value)) {
                z(n, j) = std::numeric_limits<double>::quiet_NaN();
                continue;
            }
            const Index i = maps.cell_of(value, j);
            if (maps.is_flat(value, j, i)) {
                z(n, j) = maps.flat(j, i, 0);
                variance(n, j) = maps.flat(j, i, 1);
                base(n, j) = maps.flat(j, i, 2);
                continue;
            }
            z(n, j) = maps.on_line(value, j, i);
            variance(n, j) = maps.unit(j);
            double slope;
            if (i == 0) slope = maps.tail(j, 0);
            else if (i == GRID) slope = maps.tail(j, 1);
            else slope = (maps.values(j, i) - maps.values(j, i - 1)) * CELLS_PER_UNIT;
            base(n, j) = -std::log(slope);
        }
}

// The score that separates the values below each x from the others, in one column; infinite where x is.
void positions(nb::object x_, nb::object maps_, Index column, nb::object z_) {
    Arguments arguments;
    auto x = arguments.array<const double, 1>("x", x_, {"values"});
    auto maps = arguments.record<ScoreMaps>("maps", maps_);
    auto z = arguments.array<double, 1>("z", z_, {"values"});
    Arguments::require(column >= 0 && column < maps.values[0], "column must be that of a map");
    nb::gil_scoped_release unlocked;
    for (Index i = 0; i < x[0]; ++i)
        z(i) = std::isfinite(x(i)) ? maps.on_line(x(i), column, maps.cell_of(x(i), column)) : x(i);
}

// Values of scores, in place.
void decode(nb::object z_, nb::object maps_) {
    Arguments arguments;
    auto z = arguments.array<double, 2>("z", z_, {"columns", "rows"});
    auto maps = arguments.record<ScoreMaps>("maps", maps_);
    nb::gil_scoped_release unlocked;
    for (Index j = 0; j < z[0]; ++j) maps.decode(z.at(j), z[1], j);
}

}  // namespace

void bind_normal_scores(nb::module_& m) {
    m.def("encode", &encode, nb::arg("x"), nb::arg("maps"), nb::arg("z"), nb::arg("variance"), nb::arg("base"),
          "Scores of x (rows, columns), their variances and log base measures.");
    m.def("positions", &positions, nb::arg("x"), nb::arg("maps"), nb::arg("column"), nb::arg("z"),
          "The lowest score that leads to each value of x in one column.");
    m.def("decode", &decode, nb::arg("z"), nb::arg("maps"), "Replace scores (columns, rows) by values.");
}
