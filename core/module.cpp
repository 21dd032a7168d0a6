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
}
