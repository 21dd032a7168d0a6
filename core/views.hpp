// numpy arrays and records of them (NamedTuples) as arguments of kernels, checked once in the bindings.
//
// A kernel sees a View: a pointer and a shape, without bounds checks. Before, Arguments has checked data type, dimensions,
// layout and writability, and that axes of one name have one size in all arguments of a call.
#pragma once
#include <nanobind/nanobind.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <vector>

namespace nb = nanobind;

using Index = std::ptrdiff_t;
using Word = std::uint64_t;

// A C-contiguous array that numpy owns. T is const where a kernel only reads.
template <class T, int D>
struct View {
    T* data = nullptr;
    std::array<Index, D> shape{};

    Index operator[](int axis) const { return shape[axis]; }
    Index size() const {
        Index n = 1;
        for (Index each : shape) n *= each;
        return n;
    }
    // An element; one index per axis.
    template <class... I>
    T& operator()(I... index) const {
        static_assert(sizeof...(I) == D, "one index for each axis");
        return data[offset(index...)];
    }
    // The first element of a row, or of a block of rows; fewer indices than axes.
    template <class... I>
    T* at(I... index) const {
        static_assert(sizeof...(I) < D, "fewer indices than axes");
        return data + offset(index...);
    }

  private:
    template <class... I>
    Index offset(I... index) const {
        Index place = 0, axis = 0;
        ((place = place * shape[axis++] + Index(index)), ...);
        for (; axis < D; ++axis) place *= shape[axis];
        return place;
    }
};

// Whether all elements are at least `least` and less than `end`: codes and positions that a kernel writes to.
template <class T, int D>
bool within(View<T, D> values, Index least, Index end) {
    using U = std::remove_const_t<T>;
    U smallest = std::numeric_limits<U>::max(), largest = std::numeric_limits<U>::min();
    for (Index i = 0; i < values.size(); ++i) {
        smallest = std::min(smallest, values.data[i]);
        largest = std::max(largest, values.data[i]);
    }
    return values.size() == 0 || (Index(smallest) >= least && Index(largest) < end);
}

// The size that an axis must have: a number, or a name whose first use in a call fixes it.
// Dim("trees", 1) is one more than "trees"; at_least("rows") may be longer; any() is free.
struct Dim {
    const char* name = nullptr;
    Index number = 0;
    bool or_more = false;

    Dim(const char* name, Index more = 0) : name(name), number(more) {}
    Dim(int size) : number(size) {}
    static Dim any() { return {nullptr, 0, true}; }
    static Dim at_least(const char* name, Index more = 0) { return {name, more, true}; }
    static Dim at_least(int size) { return {nullptr, size, true}; }

  private:
    Dim(const char* name, Index number, bool or_more) : name(name), number(number), or_more(or_more) {}
};

template <class T>
constexpr const char* type_name() {
    using U = std::remove_const_t<T>;
    if constexpr (std::is_same_v<U, bool>) return "bool";
    else if constexpr (std::is_same_v<U, double>) return "float64";
    else if constexpr (std::is_same_v<U, float>) return "float32";
    else if constexpr (std::is_signed_v<U>) return sizeof(U) == 8 ? "int64" : sizeof(U) == 4 ? "int32" : sizeof(U) == 2 ? "int16" : "int8";
    else return sizeof(U) == 8 ? "uint64" : sizeof(U) == 4 ? "uint32" : sizeof(U) == 2 ? "uint16" : "uint8";
}

// The arguments of one call: reads them, and records the size of each named axis.
class Arguments {
  public:
    template <class T, int D>
    View<T, D> array(const char* name, nb::handle value, const Dim (&dims)[D]) {
        View<T, D> out;
        const Expected expected{kind<T>(), sizeof(T), alignof(T), type_name<T>(), D, !std::is_const_v<T>};
        out.data = static_cast<T*>(read(name, value, expected, out.shape.data()));
        for (int axis = 0; axis < D; ++axis) agree(name, axis, out.shape[axis], dims[axis]);
        return out;
    }

    // A record has a static fields(record, reader), which names every field once.
    template <class R>
    R record(const char* name, nb::handle value) {
        R out;
        path_.push_back(name);
        Reader reader{*this, value};
        R::fields(out, reader);
        path_.pop_back();
        return out;
    }

    // Whether the elements of an array have type T, for kernels that take several types.
    template <class T>
    static bool holds(nb::handle value) {
        return holds(value, kind<T>(), sizeof(T));
    }

    Index size(const char* dim) const {
        for (const Known& each : known_)
            if (same(each.name, dim)) return each.size;
        throw std::logic_error("an axis without a size");
    }

    // A check beyond sizes of axes, such as the least entry of an array of offsets.
    static void require(bool holds, const char* message) {
        if (!holds) throw nb::value_error(message);
    }

  private:
    struct Reader {
        Arguments& arguments;
        nb::handle record;

        template <class T, int D>
        void operator()(const char* name, View<T, D>& out, const Dim (&dims)[D]) {
            out = arguments.array<T, D>(name, get(name), dims);
        }
        template <class R>
        auto operator()(const char* name, R& out) -> std::enable_if_t<std::is_class_v<R>> {
            out = arguments.record<R>(name, get(name));
        }
        template <class T>
        auto operator()(const char* name, T& out) -> std::enable_if_t<std::is_arithmetic_v<T>> {
            nb::object value = get(name);
            if (!nb::try_cast(value, out)) arguments.refuse_type(name, "a number", value);
        }
        nb::object get(const char* name) {
            PyObject* found = PyObject_GetAttrString(record.ptr(), name);
            if (!found) {
                PyErr_Clear();
                arguments.refuse_type(name, "a field of the record", record);
            }
            held.push_back(nb::steal(found));
            return held.back();
        }
        std::vector<nb::object> held{};  // keeps alive what a property returned, during this
    };
    struct Known {
        const char* name;
        Index size;
    };

    static bool same(const char* a, const char* b) { return a == b || std::strcmp(a, b) == 0; }

    template <class T>
    static constexpr char kind() {
        using U = std::remove_const_t<T>;
        return std::is_same_v<U, bool> ? '?' : std::is_floating_point_v<U> ? 'f' : std::is_signed_v<U> ? 'i' : 'u';
    }

    struct Expected {
        char kind;
        std::size_t size, alignment;
        const char* type;
        int dims;
        bool writable;
    };
    static bool holds(nb::handle value, char kind, std::size_t size);
    void* read(const char* name, nb::handle value, const Expected& expected, Index* shape);
    void* copied(const Py_buffer& buffer);
    void agree(const char* name, int axis, Index size, const Dim& dim);
    [[noreturn]] void refuse_type(const char* name, const std::string& expected, nb::handle value) const;
    std::string full(const char* name) const;

    std::vector<Known> known_;
    std::vector<const char*> path_;
    // Copies of arrays that are not aligned, as those that Dask receives may be.
    std::vector<std::vector<Word>> copies_;
};
