#include "views.hpp"

namespace {

// Kind of a single-character format of the buffer protocol; 0 for anything else, other byte orders included.
// numpy writes "=" before that of an array that is not aligned.
char kind_of(const char* format) {
    if (format && format[0] == '=') ++format;
    if (!format || !format[0] || format[1]) return 0;
    if (std::strchr("df", format[0])) return 'f';
    if (std::strchr("bhilqn", format[0])) return 'i';
    if (std::strchr("BHILQN", format[0])) return 'u';
    return format[0] == '?' ? '?' : 0;
}

std::string described(nb::handle value) {
    nb::object dtype = nb::getattr(value, "dtype", nb::none()), shape = nb::getattr(value, "shape", nb::none());
    if (dtype.is_none() || shape.is_none()) return nb::str(nb::handle((PyObject*)Py_TYPE(value.ptr()))).c_str();
    return std::string(nb::str(dtype).c_str()) + " of shape " + nb::str(shape).c_str();
}

}  // namespace

std::string Arguments::full(const char* name) const {
    std::string out;
    for (const char* each : path_) out += std::string(each) + ".";
    return out + name;
}

void Arguments::refuse_type(const char* name, const std::string& expected, nb::handle value) const {
    throw nb::type_error((full(name) + " must be " + expected + "; got " + described(value)).c_str());
}

void* Arguments::copied(const Py_buffer& buffer) {
    copies_.emplace_back((buffer.len + sizeof(Word) - 1) / sizeof(Word));
    return std::memcpy(copies_.back().data(), buffer.buf, buffer.len);
}

void* Arguments::read(const char* name, nb::handle value, const Expected& expected, Index* shape) {
    Py_buffer buffer;
    const int flags = PyBUF_FORMAT | PyBUF_C_CONTIGUOUS | (expected.writable ? PyBUF_WRITABLE : 0);
    void* data = nullptr;
    bool fits = PyObject_GetBuffer(value.ptr(), &buffer, flags) == 0;
    if (fits) {
        const bool aligned = reinterpret_cast<std::uintptr_t>(buffer.buf) % expected.alignment == 0;
        fits = kind_of(buffer.format) == expected.kind && std::size_t(buffer.itemsize) == expected.size && buffer.ndim == expected.dims &&
               (aligned || !expected.writable);
        if (fits) {
            data = aligned ? buffer.buf : copied(buffer);
            for (int axis = 0; axis < expected.dims; ++axis) shape[axis] = buffer.shape[axis];
        }
        PyBuffer_Release(&buffer);  // the caller holds the array while the kernel runs
    } else {
        PyErr_Clear();
    }
    if (!fits)
        refuse_type(name, std::string("a C-contiguous ") + (expected.writable ? "aligned and writable " : "") + expected.type +
                              " array with " + std::to_string(expected.dims) + (expected.dims == 1 ? " axis" : " axes"), value);
    return data;
}

bool Arguments::holds(nb::handle value, char kind, std::size_t size) {
    Py_buffer buffer;
    if (PyObject_GetBuffer(value.ptr(), &buffer, PyBUF_FORMAT | PyBUF_STRIDES) != 0) {
        PyErr_Clear();
        return false;
    }
    const bool fits = kind_of(buffer.format) == kind && std::size_t(buffer.itemsize) == size;
    PyBuffer_Release(&buffer);
    return fits;
}

void Arguments::agree(const char* name, int axis, Index size, const Dim& dim) {
    Index expected = dim.number;
    if (dim.name) {
        const Known* found = nullptr;
        for (const Known& each : known_)
            if (same(each.name, dim.name)) found = &each;
        if (!found && !dim.or_more && size >= dim.number) {
            known_.push_back({dim.name, size - dim.number});
            return;
        }
        expected += found ? found->size : 0;
    }
    if (dim.or_more ? size >= expected : size == expected) return;
    std::string message = full(name) + " must have " + (dim.or_more ? "at least " : "") + std::to_string(expected) + " along axis " +
                          std::to_string(axis) + (dim.name ? std::string(" (") + dim.name + ")" : "") + "; got " + std::to_string(size);
    throw nb::value_error(message.c_str());
}
