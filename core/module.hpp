// What each file of kernels binds.
#pragma once
#include "views.hpp"

void bind_trees(nb::module_& m);
void bind_normal(nb::module_& m);
void bind_sobol(nb::module_& m);
void bind_normal_scores(nb::module_& m);
void bind_gaussian_em(nb::module_& m);
void bind_gaussian_draws(nb::module_& m);
