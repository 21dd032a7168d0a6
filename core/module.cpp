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
    bind("trees", "Trees on complete rows.", bind_trees);
    bind("latent_tree", "Latent trees: EM, log p and draws of latents.", bind_latent_tree);
    bind("monte_carlo", "Draws of missing values go through all trees.", bind_monte_carlo);
    bind("shared_draws", "Draws that all rows share, and single missing numbers, under a mixture.", bind_shared_draws);
    bind("leaf_sets", "Which leaves of trees observed values leave.", bind_leaf_sets);
    bind("mixture_walk", "Exact expectations under mixtures of products.", bind_mixture_walk);
    bind("mixture_regions", "The same with the regions of missing values.", bind_mixture_regions);
    bind("single_missing", "Exact expectations of rows that lack a single number.", bind_single_missing);
    bind("latent_walk", "Exact expectations under latent trees.", bind_latent_walk);
    bind("latent_regions", "The same with the regions of missing values.", bind_latent_regions);
}
