// What each file of kernels binds.
#pragma once
#include "views.hpp"

void bind_boosting(nb::module_& m);
void bind_chow_liu(nb::module_& m);
void bind_circuit(nb::module_& m);
void bind_columns(nb::module_& m);
void bind_drawn_leaves(nb::module_& m);
void bind_gaussian_draws(nb::module_& m);
void bind_gaussian_em(nb::module_& m);
void bind_latent_regions(nb::module_& m);
void bind_latent_tree(nb::module_& m);
void bind_latent_walk(nb::module_& m);
void bind_leaf_probabilities(nb::module_& m);
void bind_leaf_sets(nb::module_& m);
void bind_mixture(nb::module_& m);
void bind_mixture_regions(nb::module_& m);
void bind_mixture_walk(nb::module_& m);
void bind_monte_carlo(nb::module_& m);
void bind_normal(nb::module_& m);
void bind_normal_scores(nb::module_& m);
void bind_regions(nb::module_& m);
void bind_shared_draws(nb::module_& m);
void bind_single_missing(nb::module_& m);
void bind_sobol(nb::module_& m);
void bind_trees(nb::module_& m);
