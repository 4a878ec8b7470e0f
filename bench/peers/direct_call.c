// direct_call.call(function, arguments, number): the int that the C function at that address, of a pointer and a 64-bit
// number, returns. For calls of few microseconds, of which ctypes would be a noticeable part.

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdint.h>

typedef int (*Function)(const void*, int64_t);

static PyObject* call(PyObject* module, PyObject* const* values, Py_ssize_t count) {
  (void)module;
  if (count != 3) {
    PyErr_SetString(PyExc_TypeError, "call takes an address, an address and a number");
    return NULL;
  }
  const Function function = (Function)PyLong_AsVoidPtr(values[0]);
  const void* arguments = PyLong_AsVoidPtr(values[1]);
  const int64_t number = PyLong_AsLongLong(values[2]);
  if (PyErr_Occurred() != NULL) return NULL;
  return PyLong_FromLong(function(arguments, number));
}

static PyMethodDef methods[] = {
    {"call", (PyCFunction)(void (*)(void))call, METH_FASTCALL, "call(function, arguments, number)"},
    {NULL, NULL, 0, NULL}};

static struct PyModuleDef module = {.m_base = PyModuleDef_HEAD_INIT,
                                    .m_name = "direct_call",
                                    .m_size = -1,
                                    .m_methods = methods};

PyMODINIT_FUNC PyInit_direct_call(void) {
  return PyModule_Create(&module);
}
