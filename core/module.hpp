// What each file of kernels binds.
#pragma once
#include "views.hpp"

void bind_trees(nb::module_& m);
void bind_latent_tree(nb::module_& m);
