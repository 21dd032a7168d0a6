// The extension: one submodule for each file of kernels. NAME is that of the build (baseline, v3).
#include "module.hpp"

NB_MODULE(NAME, m) {
    m.def("supports_v3", [] {
#if defined(__x86_64__) && defined(__GNUC__)
        __builtin_cpu_init();
        return bool(__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("bmi2"));
#else
        return false;
#endif
    }, "Whether this processor has all that the build for x86-64-v3 uses.");
    const auto bind = [&](const char* name, const char* doc, void (*define)(nb::module_&)) {
        nb::module_ part = m.def_submodule(name, doc);
        define(part);
    };
    bind("boosting", "Small boosted trees.", bind_boosting);
    bind("chow_liu", "Mutual information of pairs of variables.", bind_chow_liu);
    bind("circuit", "Leaves that agree with rows.", bind_circuit);
    bind("columns", "What rows say of each variable.", bind_columns);
    bind("drawn_leaves", "Leaves of draws.", bind_drawn_leaves);
    bind("gaussian_draws", "Draws of Gaussian mixtures.", bind_gaussian_draws);
    bind("gaussian_em", "EM for Gaussian mixtures.", bind_gaussian_em);
    bind("latent_regions", "Exact expectations under latent trees, with the regions of missing values.", bind_latent_regions);
    bind("latent_tree", "Latent trees: EM, log p and draws of latents.", bind_latent_tree);
    bind("latent_walk", "Exact expectations under latent trees.", bind_latent_walk);
    bind("leaf_probabilities", "Leaf probabilities as sparse matrices.", bind_leaf_probabilities);
    bind("leaf_sets", "Leaves of trees that are compatible with the observed values.", bind_leaf_sets);
    bind("mixture", "EM for mixtures of products.", bind_mixture);
    bind("mixture_regions", "Exact expectations under mixtures of products, with the regions of missing values.", bind_mixture_regions);
    bind("mixture_walk", "Exact expectations under mixtures of products.", bind_mixture_walk);
    bind("monte_carlo", "Monte Carlo expectations: draws of missing values go through all trees.", bind_monte_carlo);
    bind("normal", "The standard normal distribution.", bind_normal);
    bind("normal_scores", "Maps of columns to normal scores.", bind_normal_scores);
    bind("regions", "Sets of categories at splits.", bind_regions);
    bind("shared_draws", "Draws that all rows share, and single missing numbers, under a mixture.", bind_shared_draws);
    bind("single_missing", "Exact expectations of rows that lack a single number.", bind_single_missing);
    bind("sobol", "Uniform numbers of scrambled Sobol points.", bind_sobol);
    bind("trees", "Trees on complete rows.", bind_trees);
}
