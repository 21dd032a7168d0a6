// Maps of columns to normal scores: x(z) is linear between the points of a grid of z, straight beyond its ends.
#pragma once
#include "exponentials.hpp"
#include "vectors.hpp"

#include <algorithm>
#include <cmath>

// The grid of z runs from -END to END. The search for a cell goes to one of COARSE blocks of STRIDE grid points first.
constexpr double END = 4.0;
constexpr Index CELLS_PER_UNIT = 64, COARSE = 16, STRIDE = 32, GRID = COARSE * STRIDE + 1;
static_assert(GRID == 2 * Index(END) * CELLS_PER_UNIT + 1, "blocks and one more point make the grid");

// How many of n numbers, a multiple of eight, are below a limit.
inline Index count_below(const double* x, Index n, double limit) {
    auto even = spread(0.0) < spread(0.0), odd = even;  // integers: 0, and -1 where a comparison holds
    for (Index m = 0; m < n; m += 2 * AT_ONCE) {
        even = even + (load(x + m) < spread(limit));
        odd = odd + (load(x + m + AT_ONCE) < spread(limit));
    }
    even = even + odd;
    return -Index(even[0] + even[1] + even[2] + even[3]);
}

struct ScoreMaps {
    View<const double, 2> coarse;  // (columns, COARSE) the last value of each block of grid points
    View<const double, 2> values;  // (columns, GRID) x at the grid of z, never decreasing
    View<const double, 2> tail;    // (columns, 2) slope of x below and above the grid
    View<const double, 2> limits;  // (columns, 2) of draws
    View<const bool, 1> whole;     // draws are rounded to whole numbers
    View<const double, 3> flat;    // (columns, GRID, 3) at the first grid point of a flat: mean, variance, entropy within it
    View<const double, 1> unit;    // the variance of a score that is on no flat

    template <class Reader>
    static void fields(ScoreMaps& self, Reader& read) {
        read("coarse", self.coarse, {"columns", int(COARSE)});
        read("values", self.values, {"columns", int(GRID)});
        read("tail", self.tail, {"columns", 2});
        read("limits", self.limits, {"columns", 2});
        read("whole", self.whole, {"columns"});
        read("flat", self.flat, {"columns", int(GRID), 3});
        read("unit", self.unit, {"columns"});
    }

    // The first grid point of column j whose value is at least x; GRID if none is. Branch-free counts of the points below
    // x in two levels: the branches of a search would be mispredicted.
    Index cell_of(double x, Index j) const {
        const double *blocks = coarse.at(j), *grid = values.at(j);
        const Index block = count_below(blocks, COARSE, x), first = block * STRIDE;
        if (block == COARSE) return first + (grid[first] < x);
        return first + count_below(grid + first, STRIDE, x);
    }

    // The lowest z that leads to x in column j, where its cell is i.
    double on_line(double x, Index j, Index i) const {
        const double* grid = values.at(j);
        if (i == 0) return std::max(-END + (x - grid[0]) / tail(j, 0), -FARTHEST);
        if (i == GRID) return std::min(END + (x - grid[GRID - 1]) / tail(j, 1), FARTHEST);
        const double part = (x - grid[i - 1]) / (grid[i] - grid[i - 1]);
        return -END + (double(i - 1) + part) / CELLS_PER_UNIT;
    }

    // Whether x, whose cell is i, is the value of a flat of column j.
    bool is_flat(double x, Index j, Index i) const { return i < GRID && values(j, i) == x && flat(j, i, 1) > 0.0; }

    // Replace n scores by values of column j. Branch-free. Beyond the grid the last cell is extrapolated: that is exact for a
    // straight map, and for an empirical one only the limits matter there. NaN stays NaN.
    void decode(double* z, Index n, Index j) const {
        const double low = limits(j, 0), high = limits(j, 1), *grid = values.at(j);
        constexpr Index AT_A_TIME = 64;  // loops without look-ups vectorise
        double part[AT_A_TIME];
        std::int32_t cell[AT_A_TIME];
        for (Index start = 0; start < n; start += AT_A_TIME) {
            double* own = z + start;
            const Index stop = std::min(AT_A_TIME, n - start);
            for (Index s = 0; s < stop; ++s) {
                const double place = (own[s] + END) * CELLS_PER_UNIT;
                cell[s] = std::int32_t(std::min(std::max(0.0, place), double(GRID - 2)));
                part[s] = place - cell[s];
            }
            for (Index s = 0; s < stop; ++s) {
                const double x = grid[cell[s]] + part[s] * (grid[cell[s] + 1] - grid[cell[s]]);
                own[s] = std::min(std::max(x, low), high);
            }
        }
        if (whole(j))
            for (Index s = 0; s < n; ++s) z[s] = std::rint(z[s]);
    }
};
