// What each file of kernels binds.
#pragma once
#include "views.hpp"

void bind_trees(nb::module_& m);
void bind_latent_tree(nb::module_& m);
void bind_monte_carlo(nb::module_& m);
void bind_shared_draws(nb::module_& m);
void bind_leaf_sets(nb::module_& m);
void bind_mixture_walk(nb::module_& m);
void bind_mixture_regions(nb::module_& m);
void bind_single_missing(nb::module_& m);
void bind_latent_walk(nb::module_& m);
void bind_latent_regions(nb::module_& m);
