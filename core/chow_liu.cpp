// Mutual information of pairs of variables, in nats, on the rows that observe both.
#include "module.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

namespace {

double entropy_term(double p) { return p > 0.0 ? p * std::log(p) : 0.0; }

// sum_ab p_ab log p_ab - sum_a p_a log p_a - sum_b p_b log p_b, minus its expectation by chance, (a - 1)(b - 1) / (2 n) for
// a and b codes that occur, n = (sum w)^2 / sum w^2. Fills out[u, v] for start <= u < stop and v > u.
// O(pairs * (rows + codes^2)).
void information(nb::object codes_, nb::object weight_, Index start, Index stop, Index n_codes, nb::object out_) {
    Arguments arguments;
    auto codes = arguments.array<const std::int32_t, 2>("codes", codes_, {"variables", "rows"});
    auto weight = arguments.array<const double, 1>("weight", weight_, {"rows"});
    auto out = arguments.array<double, 2>("out", out_, {"variables", "variables"});
    Arguments::require(start >= 0 && stop <= codes[0], "start and stop must be among the variables");
    Arguments::require(within(codes, std::numeric_limits<std::int32_t>::min(), n_codes), "codes must be less than n_codes");
    nb::gil_scoped_release unlocked;
    std::vector<double> joint(n_codes * n_codes);
    for (Index u = start; u < stop; ++u)
        for (Index v = u + 1; v < codes[0]; ++v) {
            std::fill(joint.begin(), joint.end(), 0.0);
            double total = 0.0, squares = 0.0;
            const std::int32_t *one = codes.at(u), *other = codes.at(v);
            for (Index n = 0; n < codes[1]; ++n) {
                if (one[n] < 0 || other[n] < 0) continue;
                joint[one[n] * n_codes + other[n]] += weight(n);
                total += weight(n);
                squares += weight(n) * weight(n);
            }
            if (total <= 0.0) continue;
            double information = 0.0;
            Index rows = 0, columns = 0;
            for (Index a = 0; a < n_codes; ++a) {
                double row = 0.0, column = 0.0;
                for (Index b = 0; b < n_codes; ++b) {
                    row += joint[a * n_codes + b];
                    column += joint[b * n_codes + a];
                    information += entropy_term(joint[a * n_codes + b] / total);
                }
                rows += row > 0.0;
                columns += column > 0.0;
                information -= entropy_term(row / total) + entropy_term(column / total);
            }
            const double effective = total * total / squares;
            out(u, v) = information - double((rows - 1) * (columns - 1)) / (2.0 * effective);
        }
}

}  // namespace

void bind_chow_liu(nb::module_& m) {
    m.def("information", &information, nb::arg("codes"), nb::arg("weight"), nb::arg("start"), nb::arg("stop"), nb::arg("n_codes"),
          nb::arg("out"), "Mutual information of variables from start to stop with those after them, into out (variables, variables).");
}
