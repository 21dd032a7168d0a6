// Rows of all variables, and the univariate distributions of a density, as knothole.densities.univariate.packed has them.
#pragma once
#include "views.hpp"

// The code of a row is a row of the stacked table, -1 for a missing value; int16 where the table is small.
template <class Code>
struct Values {
    View<const Code, 2> code;          // (rows, variables)
    View<const double, 2> z;           // (rows, slots) standardised values of the variables that have them
    View<const std::int64_t, 1> slot;  // (variables,) column of z, or -1

    template <class Reader>
    static void fields(Values& self, Reader& read) {
        read("code", self.code, {"rows", "variables"});
        read("z", self.z, {"rows", "slots"});
        read("slot", self.slot, {"variables"});
    }
};

// One array of numbers for all distributions: one for each code and state, two for each slot and state. Parameters are
// log probabilities and the factors of z and z^2; statistics are sums of shares, and of shares times z and z^2.
template <class T>
struct Stacked {
    View<T, 2> table;   // (codes, states)
    View<T, 2> linear;  // (slots, states)
    View<T, 2> square;

    template <class Reader>
    static void fields(Stacked& self, Reader& read) {
        read("table", self.table, {"codes", "states"});
        read("linear", self.linear, {"slots", "states"});
        read("square", self.square, {"slots", "states"});
    }
};

// Call f with the type Code of the codes of some values.
template <class F>
auto with_code_type(nb::handle values, F f) {
    const bool small = Arguments::holds<std::int16_t>(nb::getattr(values, "code", nb::none()));
    return small ? f(std::int16_t()) : f(std::int32_t());
}
