// From rows of columns to evidence about each variable: points, and sets of the categories that remain possible.
//
// A marked entry is missing; a NaN that is not marked is "not recorded", which only nullable variables can be.
// O(rows * columns).
#include "bits.hpp"
#include "module.hpp"
#include "vectors.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

namespace {

constexpr double NOT_A_NUMBER = std::numeric_limits<double>::quiet_NaN();
// The point of a numeric variable that is not recorded.
constexpr double NOT_RECORDED = std::numeric_limits<double>::infinity();

// What a row contains; everything after RESTRICTED is an error.
enum Found { POINTS, RESTRICTED, NOT_NULLABLE, NOT_A_CODE, NOT_A_DUMMY, TWO_ONES, NO_CATEGORY, BOTH };
constexpr const char* NAMES[] = {"POINTS", "RESTRICTED", "NOT_NULLABLE", "NOT_A_CODE", "NOT_A_DUMMY", "TWO_ONES", "NO_CATEGORY", "BOTH"};

// members[start[v]:start[v + 1]] are the columns of variable v; n_levels counts dummies, then the baseline if there is
// one, then "not recorded" if it is a state.
struct Variables {
    View<const std::int64_t, 1> start, members, n_levels;
    View<const bool, 1> one_hot, nullable;

    template <class Reader>
    static void fields(Variables& self, Reader& read) {
        read("start", self.start, {Dim("variables", 1)});
        read("members", self.members, {"members"});
        read("n_levels", self.n_levels, {"variables"});
        read("one_hot", self.one_hot, {"variables"});
        read("nullable", self.nullable, {"variables"});
    }

    void check(Index n_columns) const {
        Index before = 0;
        for (Index v = 0; v < start[0]; ++v) {
            Arguments::require(start(v) >= before && start(v) <= members[0], "start must ascend within members");
            before = start(v);
        }
        Arguments::require(within(members, 0, n_columns), "members names a column that is not there");
    }
};

using Point = std::pair<Found, double>;

// The point for an entry of a categorical column.
Point category_point(double x, bool missing, std::int64_t n_levels, bool nullable) {
    if (missing) return {POINTS, NOT_A_NUMBER};
    if (std::isnan(x)) return nullable ? Point{POINTS, double(n_levels - 1)} : Point{NOT_NULLABLE, NOT_A_NUMBER};
    if (x >= 0 && x < double(n_levels - nullable) && x == std::floor(x)) return {POINTS, x};
    return {NOT_A_CODE, NOT_A_NUMBER};
}

// The point for a one-hot group.
Point one_hot_point(const double* row, const bool* missing, const std::int64_t* dummies, Index n_dummies, std::int64_t n_levels, bool nullable) {
    Index n_missing = 0, n_unrecorded = 0, one = -1, last_missing = -1;
    for (Index c = 0; c < n_dummies; ++c) {
        const double x = row[dummies[c]];
        if (missing[dummies[c]]) {
            ++n_missing;
            last_missing = c;
        } else if (std::isnan(x)) {
            ++n_unrecorded;
        } else if (x == 1) {
            if (one >= 0) return {TWO_ONES, NOT_A_NUMBER};
            one = c;
        } else if (x != 0) {
            return {NOT_A_DUMMY, NOT_A_NUMBER};
        }
    }
    if (n_unrecorded > 0) {
        if (!nullable) return {NOT_NULLABLE, NOT_A_NUMBER};
        if (n_unrecorded + n_missing < n_dummies) return {BOTH, NOT_A_NUMBER};
        return {POINTS, double(n_levels - 1)};
    }
    if (one >= 0) return {POINTS, double(one)};
    if (n_missing == n_dummies) return {POINTS, NOT_A_NUMBER};
    const bool baseline = n_levels - nullable > n_dummies;
    if (n_missing == 0) return baseline ? Point{POINTS, double(n_dummies)} : Point{NO_CATEGORY, NOT_A_NUMBER};
    if (n_missing == 1 && !baseline) return {POINTS, double(last_missing)};
    return {RESTRICTED, NOT_A_NUMBER};
}

// Branch-free: a branch on missing entries would be mispredicted.
Index read_numbers(nb::object X_, nb::object missing_, nb::object nullable_, nb::object points_) {
    Arguments arguments;
    auto X = arguments.array<const double, 2>("X", X_, {"rows", "variables"});
    auto missing = arguments.array<const bool, 2>("missing", missing_, {"rows", "variables"});
    auto nullable = arguments.array<const bool, 1>("nullable", nullable_, {"variables"});
    auto points = arguments.array<double, 2>("points", points_, {"rows", "variables"});
    nb::gil_scoped_release unlocked;
    const Index n = X[1];
    const Four nan = spread(NOT_A_NUMBER), infinite = spread(NOT_RECORDED);
    for (Index i = 0; i < X[0]; ++i) {
        const double* x = X.at(i);
        const bool *gone = missing.at(i), *allowed = nullable.data;
        double* out = points.at(i);
        FourMasks unexpected{};
        for (Index v = 0; n >= AT_ONCE && v < n; v += AT_ONCE) {
            v = std::min(v, n - AT_ONCE);  // the last four may overlap with those before
            const Four value = load(x + v);
            const FourMasks is_gone = load(gone + v), unrecorded = (value != value) & ~is_gone;
            unexpected |= unrecorded & ~load(allowed + v);
            const Four known = unrecorded ? infinite : value;
            store(out + v, is_gone ? nan : known);
        }
        bool refused = unexpected[0] | unexpected[1] | unexpected[2] | unexpected[3];
        for (Index v = 0; n < AT_ONCE && v < n; ++v) {
            const bool unrecorded = std::isnan(x[v]) && !gone[v];
            refused |= unrecorded && !allowed[v];
            out[v] = gone[v] ? NOT_A_NUMBER : unrecorded ? NOT_RECORDED : x[v];
        }
        if (refused) return i;
    }
    return -1;
}

nb::tuple read_categories(nb::object X_, nb::object missing_, nb::object variables_, nb::object categorical_, nb::object points_) {
    Arguments arguments;
    auto X = arguments.array<const double, 2>("X", X_, {"rows", "columns"});
    auto missing = arguments.array<const bool, 2>("missing", missing_, {"rows", "columns"});
    auto variables = arguments.record<Variables>("variables", variables_);
    auto categorical = arguments.array<const std::int64_t, 1>("categorical", categorical_, {"categorical"});
    auto points = arguments.array<double, 2>("points", points_, {"rows", "variables"});
    variables.check(X[1]);
    Arguments::require(within(categorical, 0, points[1]), "categorical names a variable that is not there");
    Found found = POINTS;
    Index row = 0, variable = 0;
    {
        nb::gil_scoped_release unlocked;
        for (Index i = 0; i < X[0] && found <= RESTRICTED; ++i)
            for (Index place = 0; place < categorical[0]; ++place) {
                const Index v = categorical(place), first = variables.start(v);
                const std::int64_t *columns = variables.members.data + first, n_levels = variables.n_levels(v);
                const bool nullable = variables.nullable(v);
                const auto [kind, point] =
                    variables.one_hot(v) ? one_hot_point(X.at(i), missing.at(i), columns, variables.start(v + 1) - first, n_levels, nullable)
                                       : category_point(X(i, *columns), missing(i, *columns), n_levels, nullable);
                points(i, v) = point;
                if (kind == POINTS) continue;
                found = kind;
                if (kind > RESTRICTED) {
                    row = i;
                    variable = v;
                    break;
                }
            }
    }
    return nb::make_tuple(int(found), row, variable);
}

void read_allowed(nb::object missing_, nb::object variables_, nb::object categorical_, nb::object offsets_, nb::object points_,
                  nb::object allowed_) {
    Arguments arguments;
    auto missing = arguments.array<const bool, 2>("missing", missing_, {"rows", "columns"});
    auto variables = arguments.record<Variables>("variables", variables_);
    auto categorical = arguments.array<const std::int64_t, 1>("categorical", categorical_, {"categorical"});
    auto offsets = arguments.array<const std::int64_t, 1>("offsets", offsets_, {Dim("variables", 1)});
    auto points = arguments.array<const double, 2>("points", points_, {"rows", "variables"});
    auto allowed = arguments.array<Word, 2>("allowed", allowed_, {"rows", "words"});
    variables.check(missing[1]);
    Arguments::require(within(categorical, 0, points[1]), "categorical names a variable that is not there");
    for (Index i = 0; i < categorical[0]; ++i) {
        const Index v = categorical(i);
        Arguments::require(offsets(v) >= 0 && offsets(v + 1) <= allowed[1] &&
                               variables.n_levels(v) / 64 < offsets(v + 1) - offsets(v), "offsets must leave room for all levels");
    }
    nb::gil_scoped_release unlocked;
    for (Index i = 0; i < points[0]; ++i)
        for (Index place = 0; place < categorical[0]; ++place) {
            const Index v = categorical(place), first = offsets(v), n_levels = variables.n_levels(v);
            Word* words = allowed.at(i);
            const double point = points(i, v);
            if (!std::isnan(point)) {
                if (point >= 0 && point < double(n_levels)) put(words, first, Index(point));
                continue;
            }
            const std::int64_t* dummies = variables.members.data + variables.start(v);
            const Index n_dummies = variables.start(v + 1) - variables.start(v);
            bool whole = true;
            if (variables.one_hot(v))
                for (Index c = 0; c < n_dummies; ++c) whole &= missing(i, dummies[c]);
            for (Index c = 0; c < n_levels; ++c) {
                const bool baseline = c >= n_dummies && c < n_levels - variables.nullable(v);
                if (whole || baseline || (c < n_dummies && missing(i, dummies[c]))) put(words, first, c);
            }
        }
}

}  // namespace

void bind_columns(nb::module_& m) {
    for (int found = POINTS; found <= BOTH; ++found) m.attr(NAMES[found]) = found;
    m.def("read_numbers", &read_numbers, nb::arg("X"), nb::arg("missing"), nb::arg("nullable"), nb::arg("points"),
          "Points of numeric variables; returns the first row with a NaN that is not allowed, or -1.");
    m.def("read_categories", &read_categories, nb::arg("X"), nb::arg("missing"), nb::arg("variables"), nb::arg("categorical"),
          nb::arg("points"), "Points of categorical variables; returns what was found, and a problem's row and variable.");
    m.def("read_allowed", &read_allowed, nb::arg("missing"), nb::arg("variables"), nb::arg("categorical"), nb::arg("offsets"),
          nb::arg("points"), nb::arg("allowed"), "Set the bits of the categories that each row allows; allowed comes in as zeros.");
}
