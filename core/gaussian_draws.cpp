// Draws of a Gaussian mixture's missing values, 64 at a time, and the normals of single missing numbers.
//
// For every row with missing values: the responsibilities of the components given the observed values. The first uniform
// number of a draw chooses its component; the others become its missing values, through the normal quantile. A variable has
// the same coordinate whatever else is missing. One small Cholesky factor per pattern serves responsibilities and draws.
// O(d^2) a row and component, and O(m^2) a draw.
#include "bits.hpp"
#include "gaussian.hpp"
#include "module.hpp"
#include "normal.hpp"
#include "normal_scores.hpp"

namespace {

constexpr double INF = std::numeric_limits<double>::infinity(), NOT_RECORDED = INF;
// 64 draws, and room after them: four are written at a time.
constexpr Index ROOM = WORD + AT_ONCE;

// Distributions of discrete variables: categories, and flags that say whether a number is recorded (code 0) or not (1).
struct Discrete {
    View<const std::int64_t, 1> variable;    // (distributions,)
    View<const bool, 1> flag;
    View<const std::int64_t, 1> first_code;  // (distributions + 1,) first row of each in `probability`
    View<const double, 2> probability;       // (codes, k)
    View<const std::int64_t, 1> first_word;  // (distributions,) in a row's words; -1 where it has none

    template <class Reader>
    static void fields(Discrete& self, Reader& read) {
        read("variable", self.variable, {"distributions"});
        read("flag", self.flag, {"distributions"});
        read("first_code", self.first_code, {Dim("distributions", 1)});
        read("probability", self.probability, {"codes", "components"});
        read("first_word", self.first_word, {"distributions"});
    }
    Index size() const { return variable[0]; }
    void check(Index n_variables, Index n_words) const {
        for (Index e = 0; e < size(); ++e) {
            const Index codes = first_code(e + 1) - first_code(e);
            Arguments::require(variable(e) >= 0 && variable(e) < n_variables, "discrete.variable must be numbers of variables");
            Arguments::require(first_code(e) >= 0 && codes > 0 && first_code(e + 1) <= probability[0],
                               "discrete.first_code must divide the codes");
            Arguments::require(n_words == 0 || first_word(e) + (codes + 63) / 64 <= n_words,
                               "discrete.first_word must be that of words of a row");
        }
    }
};

struct Tables {
    PackedComponents packed;
    View<const double, 2> sharpness;       // (d, k)
    ScoreMaps maps;
    View<const std::int64_t, 1> numeric;   // (d,) the variable of each column of the maps
    Discrete discrete;

    template <class Reader>
    static void fields(Tables& self, Reader& read) {
        read("packed", self.packed);
        read("sharpness", self.sharpness, {"variables", "components"});
        read("maps", self.maps);
        read("numeric", self.numeric, {"variables"});
        read("discrete", self.discrete);
        Arguments::require(self.maps.values[0] == self.numeric[0], "maps must have a column for each numeric variable");
    }
};

// The evidence of rows.
struct Known {
    View<const double, 2> points;  // (rows, evidence variables) what is known of each variable, as in Evidence
    View<const Word, 2> allowed;   // (rows, words) sets of categories; (rows, 0) where there are none
    View<const double, 3> odds;    // (rows or 1, hypotheses, variables) odds of missing values under each hypothesis
    View<const double, 2> chance;  // (rows or 1, hypotheses) probabilities of the hypotheses

    static Known read(Arguments& arguments, nb::handle points, nb::handle allowed, nb::handle odds, nb::handle chance, const Tables& tables) {
        Known out;
        out.points = arguments.array<const double, 2>("points", points, {"rows", "evidence"});
        out.allowed = arguments.array<const Word, 2>("allowed", allowed, {"rows", "words"});
        out.odds = arguments.array<const double, 3>("odds", odds, {"sayings", "hypotheses", Dim::any()});
        out.chance = arguments.array<const double, 2>("chance", chance, {"sayings", "hypotheses"});
        Arguments::require(out.odds[0] == 1 || out.odds[0] == out.points[0], "odds must be those of one row or of all");
        Arguments::require(out.odds[1] > 0, "there must be a hypothesis");
        for (Index j = 0; j < tables.numeric[0]; ++j)
            Arguments::require(tables.numeric(j) >= 0 && tables.numeric(j) < out.points[1], "numeric must be numbers of variables");
        tables.discrete.check(out.points[1], out.allowed[1]);
        return out;
    }
};

// One row at a time: its scores, the shares of components, and draws.
template <class N>
class RowDraws {
  public:
    const Tables& tables;
    const Known& known;
    const Index d, k;
    Conditional<N> given;
    Scratch<double> joint;  // (n,) shares of the components

    RowDraws(const Tables& tables, const Known& known, N n)
        : tables(tables), known(known), d(tables.numeric[0]), k(tables.packed.log_weight[0]),
          given(tables.packed, n, most_missing_numbers(tables, known)), joint(n), score_(d), variance_(d),
          shares_(known.odds[1] * n), mass_(k), chosen_(WORD), component_(WORD), place_(WORD), first_(k + 1), which_(WORD),
          code_(WORD), ordered_(given.most * ROOM), normal_(given.most), scale_(given.most), middle_(given.most),
          z_(given.most * ROOM) {}

    static bool has_missing(const double* points, Index n) {
        Index missing = 0;
        for (Index v = 0; v < n; ++v) missing += std::isnan(points[v]);
        return missing > 0;
    }

    // Whether the score of a numeric variable is missing.
    bool lacks(Index j) const { return std::isnan(score_[j]); }

    // Read a row and compute the shares of components, summed over hypotheses.
    void read(Index row) {
        row_ = row;
        read_scores();
        given.read(score_.data());
        given.project(score_.data());
        given.add_sharpness(variance_.data(), tables.sharpness);
        std::fill(joint.begin(), joint.end(), 0.0);
        given.add_log(joint.data());
        add_hypotheses();
    }

    // One word of draws of the missing values. `uniform` (coordinates, draws) starts at the word; `normal` (d, 64) has its
    // coordinates of numbers as normals. Draws are written to out (variables, draws), which starts at the word too.
    void draw(const double* uniform, Index n_coordinates, const double* normal, double* out, Index n_draws) {
        const double* points = known.points.at(row_);
        const std::vector<Index>& missing = given.pattern.missing;
        const Index n_missing = Index(missing.size());
        allot(uniform);
        for (Index i = 0; i < n_missing; ++i) {
            normal_[i] = normal + missing[i] * WORD;
            if (in_order_) continue;
            double* to = &ordered_[i * ROOM];
            for (Index t = 0; t < WORD; ++t) to[t] = normal_[i][place_[t]];
            normal_[i] = to;
        }
        for (Index start = 0, stop; start < WORD; start = stop) {
            stop = start + 1;
            while (stop < WORD && component_[stop] == component_[start]) ++stop;
            draw_scores(component_[start], start, stop);
        }
        for (Index i = 0; i < n_missing; ++i) {
            const Index j = missing[i], v = tables.numeric(j);
            if (!std::isnan(points[v])) continue;  // known not to be recorded
            double *z = &z_[i * ROOM], *to = out + v * n_draws;
            tables.maps.decode(z, WORD, j);
            put(to, z);
        }
        choose_hypotheses(uniform + (n_coordinates - 1) * n_draws);
        for (Index e = 0; e < tables.discrete.size(); ++e) {
            const Index v = tables.discrete.variable(e);
            if (!std::isnan(points[v])) continue;
            draw_codes(e, uniform + (1 + d + e) * n_draws);
            double* to = out + v * n_draws;
            if (!tables.discrete.flag(e)) put(to, code_.data());
            else
                for (Index t = 0; t < WORD; ++t)
                    if (code_[t] == 1.0) to[place_[t]] = NOT_RECORDED;
        }
    }

  private:
    Index row_ = 0, n_cases_ = 1;
    bool in_order_ = true;
    Scratch<double> score_, variance_;   // (d,)
    Scratch<double> shares_;             // (hypotheses, n) of both
    Scratch<double> mass_;               // (k,)
    Scratch<std::int64_t> chosen_, component_, place_;  // of draws; the last two in the order of components
    std::vector<Index> first_;
    std::vector<Index> which_;           // the hypothesis of each draw
    Scratch<double> code_;
    Scratch<double> ordered_;            // (missing, ROOM) coordinates as normals, in the order of components
    std::vector<const double*> normal_;  // of each missing number
    std::vector<double> scale_, middle_;
    Scratch<double> z_;                  // (missing, ROOM)

    static Index most_missing_numbers(const Tables& tables, const Known& known) {
        Index most = 0;
        for (Index row = 0; row < known.points[0]; ++row) {
            Index own = 0;
            for (Index j = 0; j < tables.numeric[0]; ++j) own += !std::isfinite(known.points(row, tables.numeric(j)));
            most = std::max(most, own);
        }
        return most;
    }

    // Draws in the order of components go to their places in the word.
    void put(double* to, const double* values) const {
        if (in_order_) return (void)std::copy_n(values, WORD, to);
        for (Index t = 0; t < WORD; ++t) to[place_[t]] = values[t];
    }

    // Scores of a row's numeric variables, NaN where they have none, and their variances.
    void read_scores() {
        const ScoreMaps& maps = tables.maps;
        for (Index j = 0; j < d; ++j) {
            const double x = known.points(row_, tables.numeric(j));
            variance_[j] = 0.0;
            if (!std::isfinite(x)) {
                score_[j] = std::numeric_limits<double>::quiet_NaN();
                continue;
            }
            const Index i = maps.cell_of(x, j);
            if (maps.is_flat(x, j, i)) {
                score_[j] = maps.flat(j, i, 0);
                variance_[j] = maps.flat(j, i, 1);
            } else {
                score_[j] = maps.on_line(x, j, i);
                variance_[j] = maps.unit(j);
            }
        }
    }

    // Whether a row's set of codes, given by its first word, has a code; without words every code is possible.
    bool allows(Index first, Index code) const { return known.allowed[1] == 0 || first < 0 || has(known.allowed.at(row_), first, code); }

    // The code for a point, -1 if it is missing.
    static Index known_code(double x, bool flag) {
        if (std::isnan(x)) return -1;
        return flag ? Index(std::isinf(x)) : Index(x);
    }

    // The factor of "not recorded" in the likelihood of a missing value, under a hypothesis.
    double ratio_of(Index h, Index v) const { return v < known.odds[2] ? known.odds(known.odds[0] == 1 ? 0 : row_, h, v) : 1.0; }

    // Add log p of the row's discrete variables, under a hypothesis, to the log joint density of each component.
    void add_discrete(Index h, double* out) {
        const Discrete& discrete = tables.discrete;
        for (Index e = 0; e < discrete.size(); ++e) {
            const Index v = discrete.variable(e), code = known_code(known.points(row_, v), discrete.flag(e));
            const Index start = discrete.first_code(e), stop = discrete.first_code(e + 1), last = stop - 1;
            const double ratio = ratio_of(h, v);
            const double* probability = discrete.probability.data;
            if (code < 0 && known.allowed[1] == 0 && ratio == 1.0) continue;
            if (code >= 0 || ratio == INF) {
                const double* own = probability + (code >= 0 ? std::min(start + code, last) : last) * k;
                for (Index c = 0; c < k; ++c) out[c] += std::log(own[c]);
                continue;
            }
            std::fill(mass_.begin(), mass_.end(), 0.0);
            for (Index row = start; row < stop; ++row) {
                if (!allows(discrete.first_word(e), row - start)) continue;
                const double times = row == last ? ratio : 1.0;  // "not recorded" is the last of all codes
                for (Index c = 0; c < k; ++c) mass_[c] += probability[row * k + c] * times;
            }
            for (Index c = 0; c < k; ++c) out[c] += std::log(mass_[c]);
        }
    }

    // Turn log joint densities of numbers into probabilities, over the hypotheses of the row.
    void add_hypotheses() {
        const Index n = given.n;
        const double* chance = known.chance.at(known.chance[0] == 1 ? 0 : row_);
        n_cases_ = 1;
        while (n_cases_ < known.chance[1] && chance[n_cases_] > 0.0) ++n_cases_;
        for (Index h = 0; h < n_cases_; ++h) {
            double* shares = &shares_[h * n];
            std::copy_n(joint.data(), n, shares);
            add_discrete(h, shares);
            normalise(shares, k, n);
        }
        std::fill(joint.begin(), joint.end(), 0.0);
        for (Index h = 0; h < n_cases_; ++h)
            for (Index c = 0; c < k; ++c) joint[c] += shares_[h * n + c] *= chance[h];
    }

    // The component that all draws choose, by their first coordinates; -1 if they differ.
    Index only_component(const double* uniform) const {
        double lowest = uniform[0], highest = uniform[0], reached = 0.0;
        for (Index t = 0; t < WORD; ++t) {
            lowest = std::min(lowest, uniform[t]);
            highest = std::max(highest, uniform[t]);
        }
        Index low = 0, high = 0;
        for (Index c = 0; c + 1 < k; ++c) {
            reached += joint[c];
            low += reached <= lowest;
            high += reached <= highest;
        }
        return low == high ? low : -1;
    }

    // Assign the draws of a word to components, by the first coordinate of their points. A component's draws stay in
    // the order of the word.
    void allot(const double* uniform) {
        const Index alone = only_component(uniform);
        in_order_ = alone >= 0;
        if (in_order_) {
            std::fill(component_.begin(), component_.end(), alone);
            for (Index t = 0; t < WORD; ++t) place_[t] = t;
            return;
        }
        std::fill(chosen_.begin(), chosen_.end(), 0);
        double reached = 0.0;
        for (Index c = 0; c + 1 < k; ++c) {
            reached += joint[c];
            for (Index t = 0; t < WORD; ++t) chosen_[t] += reached <= uniform[t];
        }
        std::fill(first_.begin(), first_.end(), 0);
        for (Index t = 0; t < WORD; ++t) ++first_[chosen_[t] + 1];
        for (Index c = 0; c < k; ++c) first_[c + 1] += first_[c];
        for (Index t = 0; t < WORD; ++t) {
            const Index at = first_[chosen_[t]]++;
            component_[at] = chosen_[t];
            place_[at] = t;
        }
    }

    // Scores of the missing numbers for the draws from start to stop, which are component c's: z = mean + y with
    // L' y = D^-1/2 e - D^-1 L^-1 P_mo r_o, e standard normal.
    void draw_scores(Index c, Index start, Index stop) {
        const Index n = given.n;
        for (Index i = 0; i < Index(given.pattern.missing.size()); ++i) {
            const double variance = given.inverse_pivot(i)[c];
            scale_[i] = std::sqrt(variance);
            middle_[i] = variance * given.solved[i * n + c];
        }
        for (; start + 4 * AT_ONCE <= stop; start += 4 * AT_ONCE) draw_some<4>(c, start);
        // Entries written after the last draw are overwritten later, or never read.
        for (; start < stop; start += AT_ONCE) draw_some<1>(c, start);
    }

    // Draws t and after, 4 F of them.
    template <int F>
    void draw_some(Index c, Index t) {
        const std::vector<Index>& missing = given.pattern.missing;
        const Index n_missing = Index(missing.size());
        for (Index i = n_missing - 1; i >= 0; --i) {
            Lanes<F> own;
            for (int f = 0; f < F; ++f) own.x[f] = spread(scale_[i]) * load(normal_[i] + t + f * AT_ONCE) - spread(middle_[i]);
            for (Index j = i + 1; j < n_missing; ++j) {
                const Four entry = spread(given.entry(j, i)[c]);
                for (int f = 0; f < F; ++f) own.x[f] = own.x[f] - entry * load(&z_[j * ROOM + t + f * AT_ONCE]);
            }
            own.store(&z_[i * ROOM + t]);
        }
        for (Index i = 0; i < n_missing; ++i) {
            double* z = &z_[i * ROOM + t];
            for (int f = 0; f < F; ++f) store(z + f * AT_ONCE, load(z + f * AT_ONCE) + spread(tables.packed.mean(missing[i], c)));
        }
    }

    // A code of distribution e for each draw, from its component's probabilities. The last code, "not recorded", is more
    // or less likely by the factor of the draw's hypothesis.
    void draw_codes(Index e, const double* uniform) {
        const Discrete& discrete = tables.discrete;
        const Index start = discrete.first_code(e), n_codes = discrete.first_code(e + 1) - start, first = discrete.first_word(e);
        const double* probability = discrete.probability.at(start);
        double total = 0.0, ratio = 1.0;
        for (Index t = 0; t < WORD; ++t) {
            const Index c = component_[t];
            const double before = ratio;
            ratio = ratio_of(which_[t], discrete.variable(e));
            if (ratio == INF) {
                code_[t] = double(n_codes - 1);
                continue;
            }
            const auto chance = [&](Index code) {
                const double p = probability[code * k + c];
                return code == n_codes - 1 ? p * ratio : p;
            };
            if (t == 0 || c != component_[t - 1] || ratio != before) {
                total = 0.0;
                for (Index code = 0; code < n_codes; ++code)
                    if (allows(first, code)) total += chance(code);
            }
            double left = uniform[place_[t]] * total;
            for (Index code = 0; code < n_codes; ++code)
                if (const double p = chance(code); p > 0.0 && allows(first, code)) {
                    code_[t] = double(code);
                    left -= p;
                    if (left < 0.0) break;
                }
        }
    }

    // The hypothesis of each draw, given its component, by a uniform number.
    void choose_hypotheses(const double* uniform) {
        const Index n = given.n;
        std::fill(which_.begin(), which_.end(), 0);
        if (n_cases_ == 1) return;
        for (Index t = 0; t < WORD; ++t) {
            const Index c = component_[t];
            double left = uniform[place_[t]] * joint[c] - shares_[c];
            for (Index h = 0; left >= 0.0 && h + 1 < n_cases_; left -= shares_[h * n + c]) which_[t] = ++h;
        }
    }
};

// Draw the missing values of rows. The coordinates of uniform (rows or 1, coordinates, draws) are: the component, numbers,
// codes, hypotheses; a single set is used for all rows. Missing values are written to out (rows, variables, draws);
// everything else is left unchanged.
void fill_draws(nb::object tables_, nb::object points_, nb::object allowed_, nb::object odds_, nb::object chance_, nb::object uniform_,
                nb::object out_) {
    Arguments arguments;
    const auto tables = arguments.record<Tables>("tables", tables_);
    const auto known = Known::read(arguments, points_, allowed_, odds_, chance_, tables);
    auto uniform = arguments.array<const double, 3>("uniform", uniform_, {Dim::any(), Dim::any(), "draws"});
    auto out = arguments.array<double, 3>("out", out_, {"rows", "evidence", "draws"});
    const Index rows = known.points[0], d = tables.numeric[0], words = out[2] / WORD;
    Arguments::require(uniform[0] == 1 || uniform[0] == rows, "uniform must be that of one row or of all");
    Arguments::require(uniform[1] >= 1 + d + tables.discrete.size(), "uniform must have a coordinate for each variable");
    Arguments::require(out[2] % WORD == 0, "draws must be words of 64");
    nb::gil_scoped_release unlocked;
    with_constant(tables.packed.mean[1], [&](auto n) {
        RowDraws<decltype(n)> draws(tables, known, n);
        const bool common = uniform[0] == 1;
        const double* quantiles = quantile_table();
        // Coordinates of numbers as standard normals; common ones are computed when a row first needs them.
        Scratch<double> normal((common ? words : 1) * d * WORD);
        std::vector<char> is_known(common ? words * d : 0);
        for (Index row = 0; row < rows; ++row) {
            if (!draws.has_missing(known.points.at(row), known.points[1])) continue;
            draws.read(row);
            const Index source = common ? 0 : row;
            for (Index w = 0; w < words; ++w) {
                double* of_word = &normal[common ? w * d * WORD : 0];
                for (Index j = 0; j < d; ++j) {
                    if (!draws.lacks(j) || (common && is_known[w * d + j])) continue;
                    if (common) is_known[w * d + j] = true;
                    normals(uniform.at(source, 1 + j) + w * WORD, quantiles, of_word + j * WORD);
                }
                draws.draw(uniform.at(source) + w * WORD, uniform[1], of_word, out.at(row) + w * WORD, out[2]);
            }
        }
    });
}

// Describe each row's only missing number: shares, means and standard deviations of the components, (rows, k).
void describe(nb::object tables_, nb::object points_, nb::object allowed_, nb::object odds_, nb::object chance_, nb::object share_,
              nb::object mean_, nb::object deviation_) {
    Arguments arguments;
    const auto tables = arguments.record<Tables>("tables", tables_);
    const auto known = Known::read(arguments, points_, allowed_, odds_, chance_, tables);
    auto share = arguments.array<double, 2>("share", share_, {"rows", "components"});
    auto mean = arguments.array<double, 2>("mean", mean_, {"rows", "components"});
    auto deviation = arguments.array<double, 2>("deviation", deviation_, {"rows", "components"});
    nb::gil_scoped_release unlocked;
    with_constant(tables.packed.mean[1], [&](auto n) {
        RowDraws<decltype(n)> draws(tables, known, n);
        for (Index row = 0; row < known.points[0]; ++row) {
            if (!draws.has_missing(known.points.at(row), known.points[1])) continue;
            draws.read(row);
            const std::vector<Index>& missing = draws.given.pattern.missing;
            if (missing.empty()) continue;
            for (Index c = 0; c < share[1]; ++c) {
                const double variance = draws.given.inverse_pivot(0)[c];
                share(row, c) = draws.joint[c];
                mean(row, c) = tables.packed.mean(missing[0], c) - variance * draws.given.solved[c];
                deviation(row, c) = std::sqrt(variance);
            }
        }
    });
}

}  // namespace

void bind_gaussian_draws(nb::module_& m) {
    m.def("fill", &fill_draws, nb::arg("tables"), nb::arg("points"), nb::arg("allowed"), nb::arg("odds"), nb::arg("chance"),
          nb::arg("uniform"), nb::arg("out"), "Draw the missing values of rows, 64 draws at a time, to out (rows, variables, draws).");
    m.def("describe", &describe, nb::arg("tables"), nb::arg("points"), nb::arg("allowed"), nb::arg("odds"), nb::arg("chance"),
          nb::arg("share"), nb::arg("mean"), nb::arg("deviation"),
          "Write the normal of each component for each row's only missing number, (rows, k).");
}
