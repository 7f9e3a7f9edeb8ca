/* Compare what a captured program read from Python with the present state; see `hub.frontend.direct.watch`.
 *
 * A call of a model makes about a thousand such comparisons. In C they are loads whose cache misses overlap; Python would
 * call a function for each. Everything is CPython's public interface except for one field, `ma_version_tag`, which every
 * change of a dict changes in CPython 3.11 and 3.12 (PEP 509; PEP 699 removes it later). `watch.py` tests that before it
 * relies on this module.
 */
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <structmember.h>

#if PY_VERSION_HEX < 0x030b0000 || PY_VERSION_HEX >= 0x030d0000
#error "dicts have version tags that can be relied on in CPython 3.11 and 3.12 alone"
#endif

#if defined(__GNUC__) && PY_VERSION_HEX >= 0x030c0000
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"
#endif

typedef struct {
    PyDictObject *dict;
    uint64_t tag;
} Tagged;

typedef struct {
    PyDictObject *dict;
    uint64_t tag;
    Py_ssize_t n_keys;
    PyObject **keys;   /* borrowed from `held` */
    PyObject **values; /* borrowed from `held`; NULL if the key must be missing */
} Keyed;

typedef struct {
    PyObject *object;
    PyTypeObject *type;
    PyObject **place;    /* location of the object's attributes; NULL if it cannot have any */
    PyObject *attributes; /* the dict at that location, or NULL */
    uint64_t tag;
} Typed;

typedef struct {
    PyHeapTypeObject *type;
    PyObject *mro, *name, *qualified_name;
} Classed;

typedef struct {
    PyObject *list;
    PyObject *items; /* a tuple */
} Listed;

typedef struct {
    PyObject *cell;
    PyObject *contents; /* NULL if the cell is empty */
} Celled;

typedef struct {
    PyFunctionObject *function;
    PyObject *code, *defaults, *keyword_defaults, *closure, *name, *qualified_name, *doc, *module;
} Coded;

typedef struct {
    PyObject *function;
    PyObject *args; /* a tuple */
    PyObject *answer;
} Asked;

typedef struct {
    PyObject_HEAD
    PyObject *held; /* a tuple that owns everything that the pointers below refer to */
    Tagged *tagged;
    Py_ssize_t n_tagged;
    Keyed *keyed;
    Py_ssize_t n_keyed;
    Typed *typed;
    Py_ssize_t n_typed;
    Listed *listed;
    Py_ssize_t n_listed;
    Celled *celled;
    Py_ssize_t n_celled;
    Coded *coded;
    Py_ssize_t n_coded;
    Classed *classed;
    Py_ssize_t n_classed;
    Asked *asked;
    Py_ssize_t n_asked;
} Comparison;

static void
free_arrays(Comparison *self)
{
    for (Py_ssize_t i = 0; i < self->n_keyed; i++) {
        PyMem_Free(self->keyed[i].keys);
        PyMem_Free(self->keyed[i].values);
    }
    PyMem_Free(self->tagged);
    PyMem_Free(self->keyed);
    PyMem_Free(self->typed);
    PyMem_Free(self->listed);
    PyMem_Free(self->celled);
    PyMem_Free(self->coded);
    PyMem_Free(self->classed);
    PyMem_Free(self->asked);
    self->tagged = NULL;
    self->keyed = NULL;
    self->typed = NULL;
    self->listed = NULL;
    self->celled = NULL;
    self->coded = NULL;
    self->classed = NULL;
    self->asked = NULL;
    self->n_tagged = self->n_keyed = self->n_typed = self->n_listed = self->n_celled = self->n_coded = 0;
    self->n_classed = self->n_asked = 0;
}

static int
comparison_traverse(Comparison *self, visitproc visit, void *arg)
{
    Py_VISIT(self->held);
    Py_VISIT(Py_TYPE(self));
    return 0;
}

static int
comparison_clear(Comparison *self)
{
    free_arrays(self); /* first: they point into what is held */
    Py_CLEAR(self->held);
    return 0;
}

static void
comparison_dealloc(Comparison *self)
{
    PyTypeObject *type = Py_TYPE(self);
    PyObject_GC_UnTrack(self);
    comparison_clear(self);
    type->tp_free(self);
    Py_DECREF(type);
}

/* Return zeroed memory for n items; NULL with an error set if there is none. */
static void *
room(Py_ssize_t n, size_t size)
{
    void *memory = PyMem_Calloc(n ? (size_t)n : 1, size);
    if (memory == NULL)
        PyErr_NoMemory();
    return memory;
}

static int
take_keyed(Comparison *self, PyObject *rows, PyObject *missing)
{
    Py_ssize_t n = PyTuple_GET_SIZE(rows);
    if ((self->keyed = room(n, sizeof(Keyed))) == NULL)
        return -1;
    for (Py_ssize_t i = 0; i < n; i++) {
        PyObject *dict, *keys, *values;
        if (!PyTuple_Check(PyTuple_GET_ITEM(rows, i))) {
            PyErr_SetString(PyExc_TypeError, "a tuple of a dict, keys and values is needed");
            return -1;
        }
        if (!PyArg_ParseTuple(PyTuple_GET_ITEM(rows, i), "O!O!O!", &PyDict_Type, &dict, &PyTuple_Type, &keys,
                              &PyTuple_Type, &values))
            return -1;
        Keyed *row = &self->keyed[i];
        Py_ssize_t n_keys = PyTuple_GET_SIZE(keys);
        if (PyTuple_GET_SIZE(values) != n_keys) {
            PyErr_SetString(PyExc_ValueError, "as many values as keys are needed");
            return -1;
        }
        row->dict = (PyDictObject *)dict;
        row->tag = 0; /* no dict has this tag: the first comparison checks every key, since the dict may have changed */
        row->keys = room(n_keys, sizeof(PyObject *));
        row->values = room(n_keys, sizeof(PyObject *));
        self->n_keyed = i + 1; /* so that an incomplete row is freed, too */
        if (row->keys == NULL || row->values == NULL)
            return -1;
        row->n_keys = n_keys;
        for (Py_ssize_t k = 0; k < n_keys; k++) {
            PyObject *value = PyTuple_GET_ITEM(values, k);
            row->keys[k] = PyTuple_GET_ITEM(keys, k);
            row->values[k] = value == missing ? NULL : value;
        }
    }
    return 0;
}

static PyObject *
comparison_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    PyObject *dicts, *keyed, *objects, *lists, *cells, *functions, *classes, *calls, *missing;
    if (kwargs != NULL && PyDict_GET_SIZE(kwargs) > 0) {
        PyErr_SetString(PyExc_TypeError, "Comparison takes no keyword arguments");
        return NULL;
    }
    if (!PyArg_ParseTuple(args, "O!O!O!O!O!O!O!O!O", &PyTuple_Type, &dicts, &PyTuple_Type, &keyed, &PyTuple_Type, &objects,
                          &PyTuple_Type, &lists, &PyTuple_Type, &cells, &PyTuple_Type, &functions, &PyTuple_Type, &classes,
                          &PyTuple_Type, &calls, &missing))
        return NULL;
    Comparison *self = (Comparison *)type->tp_alloc(type, 0);
    if (self == NULL)
        return NULL;
    PyObject *values = PyList_New(0); /* owns what is compared by address: a freed address could be reused */
    if (values == NULL)
        goto failed;
    self->held = PyTuple_Pack(2, args, values);
    Py_DECREF(values); /* `held` owns it */
    if (self->held == NULL)
        goto failed;

    Py_ssize_t n = PyTuple_GET_SIZE(dicts);
    if ((self->tagged = room(n, sizeof(Tagged))) == NULL)
        goto failed;
    for (Py_ssize_t i = 0; i < n; i++) {
        PyObject *dict = PyTuple_GET_ITEM(dicts, i);
        if (!PyDict_Check(dict)) {
            PyErr_SetString(PyExc_TypeError, "a dict is needed");
            goto failed;
        }
        self->tagged[i] = (Tagged){(PyDictObject *)dict, ((PyDictObject *)dict)->ma_version_tag};
    }
    self->n_tagged = n;

    if (take_keyed(self, keyed, missing) < 0)
        goto failed;

    n = PyTuple_GET_SIZE(objects);
    if ((self->typed = room(n, sizeof(Typed))) == NULL)
        goto failed;
    for (Py_ssize_t i = 0; i < n; i++) {
        PyObject *object = PyTuple_GET_ITEM(objects, i);
        PyObject **place = _PyObject_GetDictPtr(object); /* creates the dict if the attributes are stored inline */
        PyObject *attributes = place == NULL ? NULL : *place;
        if (attributes != NULL && !PyDict_Check(attributes)) {
            PyErr_SetString(PyExc_TypeError, "an object that keeps its attributes in a dict is needed");
            goto failed;
        }
        uint64_t tag = attributes == NULL ? 0 : ((PyDictObject *)attributes)->ma_version_tag;
        self->typed[i] = (Typed){object, Py_TYPE(object), place, attributes, tag};
        if (PyList_Append(values, (PyObject *)Py_TYPE(object)) < 0)
            goto failed;
        if (attributes != NULL && PyList_Append(values, attributes) < 0)
            goto failed;
    }
    self->n_typed = n;

    n = PyTuple_GET_SIZE(lists);
    if ((self->listed = room(n, sizeof(Listed))) == NULL)
        goto failed;
    for (Py_ssize_t i = 0; i < n; i++) {
        PyObject *list = PyTuple_GET_ITEM(lists, i);
        PyObject *items = PyList_Check(list) ? PyList_AsTuple(list) : NULL;
        if (items == NULL) {
            if (!PyErr_Occurred())
                PyErr_SetString(PyExc_TypeError, "a list is needed");
            goto failed;
        }
        int error = PyList_Append(values, items);
        Py_DECREF(items); /* `values` owns it */
        if (error)
            goto failed;
        self->listed[i] = (Listed){list, items};
    }
    self->n_listed = n;

    n = PyTuple_GET_SIZE(cells);
    if ((self->celled = room(n, sizeof(Celled))) == NULL)
        goto failed;
    for (Py_ssize_t i = 0; i < n; i++) {
        PyObject *cell = PyTuple_GET_ITEM(cells, i);
        if (!PyCell_Check(cell)) {
            PyErr_SetString(PyExc_TypeError, "a cell is needed");
            goto failed;
        }
        PyObject *contents = PyCell_GET(cell);
        self->celled[i] = (Celled){cell, contents};
        if (contents != NULL && PyList_Append(values, contents) < 0)
            goto failed;
    }
    self->n_celled = n;

    n = PyTuple_GET_SIZE(functions);
    if ((self->coded = room(n, sizeof(Coded))) == NULL)
        goto failed;
    for (Py_ssize_t i = 0; i < n; i++) {
        PyObject *object = PyTuple_GET_ITEM(functions, i);
        if (!PyFunction_Check(object)) {
            PyErr_SetString(PyExc_TypeError, "a function is needed");
            goto failed;
        }
        PyFunctionObject *function = (PyFunctionObject *)object;
        PyObject *parts[] = {function->func_code,    function->func_defaults, function->func_kwdefaults,
                             function->func_closure, function->func_name,     function->func_qualname,
                             function->func_doc,     function->func_module};
        self->coded[i] = (Coded){function, parts[0], parts[1], parts[2], parts[3], parts[4], parts[5], parts[6], parts[7]};
        for (size_t k = 0; k < sizeof(parts) / sizeof(parts[0]); k++)
            if (parts[k] != NULL && PyList_Append(values, parts[k]) < 0)
                goto failed;
    }
    self->n_coded = n;

    n = PyTuple_GET_SIZE(classes);
    if ((self->classed = room(n, sizeof(Classed))) == NULL)
        goto failed;
    for (Py_ssize_t i = 0; i < n; i++) {
        PyObject *object = PyTuple_GET_ITEM(classes, i);
        if (!PyType_Check(object) || !PyType_HasFeature((PyTypeObject *)object, Py_TPFLAGS_HEAPTYPE)) {
            PyErr_SetString(PyExc_TypeError, "a class that is not written in C is needed");
            goto failed;
        }
        PyHeapTypeObject *one = (PyHeapTypeObject *)object;
        PyObject *parts[] = {one->ht_type.tp_mro, one->ht_name, one->ht_qualname};
        self->classed[i] = (Classed){one, parts[0], parts[1], parts[2]};
        for (size_t k = 0; k < sizeof(parts) / sizeof(parts[0]); k++)
            if (parts[k] != NULL && PyList_Append(values, parts[k]) < 0)
                goto failed;
    }
    self->n_classed = n;

    n = PyTuple_GET_SIZE(calls);
    if ((self->asked = room(n, sizeof(Asked))) == NULL)
        goto failed;
    for (Py_ssize_t i = 0; i < n; i++) {
        PyObject *row = PyTuple_GET_ITEM(calls, i);
        if (!PyTuple_Check(row) || PyTuple_GET_SIZE(row) != 3 || !PyTuple_Check(PyTuple_GET_ITEM(row, 1))) {
            PyErr_SetString(PyExc_TypeError, "a tuple of a callable, a tuple of arguments and an answer is needed");
            goto failed;
        }
        self->asked[i] = (Asked){PyTuple_GET_ITEM(row, 0), PyTuple_GET_ITEM(row, 1), PyTuple_GET_ITEM(row, 2)};
    }
    self->n_asked = n;
    return (PyObject *)self;

failed:
    Py_DECREF(self);
    return NULL;
}

/* Return 1 if a dict's watched keys have the same values as before, 0 if not, -1 with an error set. */
static int
has_same_keys(Keyed *row)
{
    for (Py_ssize_t k = 0; k < row->n_keys; k++) {
        PyObject *value = PyDict_GetItemWithError((PyObject *)row->dict, row->keys[k]);
        if (value == NULL && PyErr_Occurred())
            return -1;
        if (value != row->values[k])
            return 0;
    }
    return 1;
}

/* Return 1 if a call returns the same object as before, 0 if not, -1 with an error set. */
static int
gives_same_answer(const Asked *row)
{
    PyObject *answer = PyObject_Vectorcall(row->function, &PyTuple_GET_ITEM(row->args, 0), (size_t)PyTuple_GET_SIZE(row->args),
                                           NULL);
    if (answer == NULL)
        return -1;
    int same = answer == row->answer;
    Py_DECREF(answer);
    return same;
}

/* Return 1 if everything is as it was, 0 if not, -1 with an error set. */
static int
is_as_it_was(Comparison *self)
{
    if (self->held == NULL) /* the garbage collector has cleared it, and a finalizer calls this */
        return 0;
    /* One accumulator without branches in its loops, so that the processor fetches many dicts at once. */
    uint64_t differences = 0;
    for (Py_ssize_t i = 0; i < self->n_tagged; i++)
        differences |= self->tagged[i].dict->ma_version_tag ^ self->tagged[i].tag;
    for (Py_ssize_t i = 0; i < self->n_typed; i++) {
        Typed *row = &self->typed[i];
        differences |= (uintptr_t)Py_TYPE(row->object) ^ (uintptr_t)row->type;
        if (row->place != NULL)
            differences |= (uintptr_t)*row->place ^ (uintptr_t)row->attributes;
        if (row->attributes != NULL)
            differences |= ((PyDictObject *)row->attributes)->ma_version_tag ^ row->tag;
    }
    for (Py_ssize_t i = 0; i < self->n_classed; i++) {
        Classed *row = &self->classed[i];
        differences |= (uintptr_t)row->type->ht_type.tp_mro ^ (uintptr_t)row->mro;
        differences |= (uintptr_t)row->type->ht_name ^ (uintptr_t)row->name;
        differences |= (uintptr_t)row->type->ht_qualname ^ (uintptr_t)row->qualified_name;
    }
    for (Py_ssize_t i = 0; i < self->n_celled; i++)
        differences |= (uintptr_t)PyCell_GET(self->celled[i].cell) ^ (uintptr_t)self->celled[i].contents;
    for (Py_ssize_t i = 0; i < self->n_coded; i++) {
        Coded *row = &self->coded[i];
        differences |= (uintptr_t)row->function->func_code ^ (uintptr_t)row->code;
        differences |= (uintptr_t)row->function->func_defaults ^ (uintptr_t)row->defaults;
        differences |= (uintptr_t)row->function->func_kwdefaults ^ (uintptr_t)row->keyword_defaults;
        differences |= (uintptr_t)row->function->func_closure ^ (uintptr_t)row->closure;
        differences |= (uintptr_t)row->function->func_name ^ (uintptr_t)row->name;
        differences |= (uintptr_t)row->function->func_qualname ^ (uintptr_t)row->qualified_name;
        differences |= (uintptr_t)row->function->func_doc ^ (uintptr_t)row->doc;
        differences |= (uintptr_t)row->function->func_module ^ (uintptr_t)row->module;
    }
    if (differences)
        return 0;
    for (Py_ssize_t i = 0; i < self->n_listed; i++) {
        Listed *row = &self->listed[i];
        Py_ssize_t n = PyTuple_GET_SIZE(row->items);
        if (PyList_GET_SIZE(row->list) != n)
            return 0;
        for (Py_ssize_t k = 0; k < n; k++)
            if (PyList_GET_ITEM(row->list, k) != PyTuple_GET_ITEM(row->items, k))
                return 0;
    }
    for (Py_ssize_t i = 0; i < self->n_keyed; i++) {
        Keyed *row = &self->keyed[i];
        uint64_t tag = row->dict->ma_version_tag;
        if (tag == row->tag)
            continue;
        int same = has_same_keys(row);
        if (same <= 0)
            return same;
        row->tag = tag; /* the tag from before the comparison: a key's __eq__ may have changed the dict meanwhile */
    }
    PyObject *held = Py_NewRef(self->held); /* a call may run the garbage collector, which may clear this */
    int same = 1;
    for (Py_ssize_t i = 0; same > 0 && i < self->n_asked; i++)
        same = gives_same_answer(&self->asked[i]);
    Py_DECREF(held);
    return same;
}

static PyObject *
comparison_holds(Comparison *self, PyObject *Py_UNUSED(ignored))
{
    int same = is_as_it_was(self);
    return same < 0 ? NULL : PyBool_FromLong(same);
}

static PyMethodDef comparison_methods[] = {
    {"holds", (PyCFunction)comparison_holds, METH_NOARGS, "Return whether everything is as it was."},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot comparison_slots[] = {
    {Py_tp_doc, "What a captured program read: dicts, keyed, objects, lists, cells, functions, classes, calls, missing."},
    {Py_tp_new, comparison_new},
    {Py_tp_dealloc, comparison_dealloc},
    {Py_tp_traverse, comparison_traverse},
    {Py_tp_clear, comparison_clear},
    {Py_tp_methods, comparison_methods},
    {0, NULL},
};

static PyType_Spec comparison_spec = {
    .name = "hub.frontend.direct.native.Comparison",
    .basicsize = sizeof(Comparison),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_IMMUTABLETYPE,
    .slots = comparison_slots,
};

/* Return whether an argument is a comparison or missing; else set TypeError. */
static bool
is_comparison(PyObject *given)
{
    if (given == NULL || Py_TYPE(given)->tp_dealloc == (destructor)comparison_dealloc) /* the type is immutable and final */
        return true;
    PyErr_SetString(PyExc_TypeError, "a Comparison is needed");
    return false;
}

/* --- Tensors ----------------------------------------------------------------------------------------------------------------
 * The address and layout of a weight come from PyTorch's C interface, which is stable between versions
 * (aoti_torch/c/shim.h). Its version counter and `requires_grad` come from the two C++ functions behind the getters of
 * PyTorch's Python type. `watch.py` passes in all of them. The getters themselves would touch the Python object, too. A
 * model's kernels have evicted it from the caches and the TLB, and fetching it again costs more than all instructions here.
 */

typedef void *Handle;
typedef int32_t (*GetPointer)(Handle, void **);
typedef int32_t (*GetNumber)(Handle, int64_t *);
typedef int32_t (*GetNumbers)(Handle, int64_t **);
typedef int32_t (*GetKind)(Handle, int32_t *);
typedef int32_t (*Delete)(Handle);
typedef int64_t (*CountWrites)(Handle); /* at::TensorBase::_version() const */
typedef bool (*NeedGradient)(void *);   /* c10::TensorImpl::requires_grad() const */

typedef struct {
    GetPointer data;
    GetNumber rank;
    GetNumbers sizes, strides;
    GetKind dtype;
    Delete delete;
    CountWrites version;
    NeedGradient needs_gradient;
    GetKind device_type, device_index;
} Interface;

typedef struct {
    void *body;    /* what a handle points to; its address serves as a handle, which saves fetching the handle's memory */
    Handle handle; /* keeps the body alive */
    void *data;
    int64_t *layout; /* sizes, then strides */
    int64_t rank;
    int64_t version;
    int32_t dtype, device_type, device_index;
    bool needs_gradient;
} Stamp;

typedef struct {
    PyObject_HEAD
    PyObject *held;
    Comparison *comparison; /* borrowed from `held`; NULL if there is none */
    Interface call;
    Stamp *stamps;
    int64_t *layouts; /* the layouts of all stamps, one after the other */
    Py_ssize_t n_stamps;
    long n_renewals;
} Stamps;

enum { CHANGED, WRITTEN, SAME }; /* results of `compare`; `watch.py` has the same names */

static int
stamps_traverse(Stamps *self, visitproc visit, void *arg)
{
    Py_VISIT(self->held);
    Py_VISIT(Py_TYPE(self));
    return 0;
}

static int
stamps_clear(Stamps *self)
{
    Py_ssize_t n = self->n_stamps;
    Stamp *stamps = self->stamps;
    self->n_stamps = 0;
    self->stamps = NULL;
    self->comparison = NULL;
    for (Py_ssize_t i = 0; i < n; i++) {
        if (stamps[i].handle != NULL)
            self->call.delete (stamps[i].handle);
    }
    PyMem_Free(stamps);
    PyMem_Free(self->layouts);
    self->layouts = NULL;
    Py_CLEAR(self->held);
    return 0;
}

static void
stamps_dealloc(Stamps *self)
{
    PyTypeObject *type = Py_TYPE(self);
    PyObject_GC_UnTrack(self);
    stamps_clear(self);
    type->tp_free(self);
    Py_DECREF(type);
}

/* Record a tensor's form except its sizes and strides; return 0 with an error set if it has no accessible memory. */
static int
fill_stamp(const Interface *call, Stamp *stamp)
{
    if (call->data(&stamp->body, &stamp->data) || call->rank(&stamp->body, &stamp->rank)
        || call->dtype(&stamp->body, &stamp->dtype) || call->device_type(&stamp->body, &stamp->device_type)
        || call->device_index(&stamp->body, &stamp->device_index)) {
        PyErr_SetString(PyExc_ValueError, "a tensor without memory that can be named");
        return 0;
    }
    stamp->version = call->version(&stamp->body);
    stamp->needs_gradient = call->needs_gradient(stamp->body);
    return 1;
}

/* Record the sizes and strides of all tensors; return 0 with an error set if that fails. */
static int
fill_layouts(Stamps *self)
{
    Py_ssize_t n_numbers = 0;
    for (Py_ssize_t i = 0; i < self->n_stamps; i++)
        n_numbers += 2 * self->stamps[i].rank;
    int64_t *next = self->layouts = room(n_numbers, sizeof(int64_t));
    if (next == NULL)
        return 0;
    for (Py_ssize_t i = 0; i < self->n_stamps; i++) {
        Stamp *stamp = &self->stamps[i];
        int64_t *sizes, *strides;
        if (self->call.sizes(&stamp->body, &sizes) || self->call.strides(&stamp->body, &strides)) {
            PyErr_SetString(PyExc_ValueError, "a tensor without sizes and strides");
            return 0;
        }
        stamp->layout = next;
        memcpy(next, sizes, (size_t)stamp->rank * sizeof(int64_t));
        memcpy(next + stamp->rank, strides, (size_t)stamp->rank * sizeof(int64_t));
        next += 2 * stamp->rank;
    }
    return 1;
}

static PyObject *
stamps_new(PyTypeObject *type, PyObject *args, PyObject *Py_UNUSED(kwargs))
{
    PyObject *tensors, *handles, *comparison = NULL;
    unsigned long long call[10];
    if (!PyArg_ParseTuple(args, "O!O!(KKKKKKKKKK)|O", &PyTuple_Type, &tensors, &PyTuple_Type, &handles, &call[0], &call[1],
                          &call[2], &call[3], &call[4], &call[5], &call[6], &call[7], &call[8], &call[9], &comparison)
        || !is_comparison(comparison))
        return NULL;
    Py_ssize_t n = PyTuple_GET_SIZE(tensors);
    if (PyTuple_GET_SIZE(handles) != n) {
        PyErr_SetString(PyExc_ValueError, "as many handles as tensors are needed");
        return NULL;
    }
    Stamps *self = (Stamps *)type->tp_alloc(type, 0);
    if (self == NULL)
        return NULL;
    self->held = Py_NewRef(args);
    self->comparison = (Comparison *)comparison;
    self->call = (Interface){(GetPointer)(uintptr_t)call[0],  (GetNumber)(uintptr_t)call[1],   (GetNumbers)(uintptr_t)call[2],
                             (GetNumbers)(uintptr_t)call[3],  (GetKind)(uintptr_t)call[4],     (Delete)(uintptr_t)call[5],
                             (CountWrites)(uintptr_t)call[6], (NeedGradient)(uintptr_t)call[7],
                             (GetKind)(uintptr_t)call[8],     (GetKind)(uintptr_t)call[9]};
    if ((self->stamps = room(n, sizeof(Stamp))) == NULL)
        goto failed;
    self->n_stamps = n;
    for (Py_ssize_t i = 0; i < n; i++) /* first, so that every handle is freed if anything below fails */
        self->stamps[i].handle = PyCapsule_GetPointer(PyTuple_GET_ITEM(handles, i), NULL);
    if (PyErr_Occurred())
        goto failed;
    for (Py_ssize_t i = 0; i < n; i++) {
        self->stamps[i].body = *(void **)self->stamps[i].handle;
        if (!fill_stamp(&self->call, &self->stamps[i]))
            goto failed;
    }
    if (!fill_layouts(self))
        goto failed;
    return (PyObject *)self;

failed:
    Py_DECREF(self);
    return NULL;
}

/* Return whether a tensor whose memory has moved is on another device now, which its class and form do not tell. */
static bool
has_changed_device(const Interface *call, Stamp *stamp)
{
    int32_t type, index;
    return call->device_type(&stamp->body, &type) || type != stamp->device_type
           || call->device_index(&stamp->body, &index) || index != stamp->device_index;
}

static PyObject *
stamps_compare(Stamps *self, PyObject *Py_UNUSED(ignored))
{
    const Interface *call = &self->call;
    if (self->held == NULL) /* the garbage collector has cleared it, and a finalizer calls this */
        return PyLong_FromLong(CHANGED);
    if (self->comparison != NULL) {
        PyObject *held = Py_NewRef(self->held); /* what is compared may run the garbage collector, which may clear this */
        int same = is_as_it_was(self->comparison);
        Py_DECREF(held);
        if (same <= 0)
            return same < 0 ? NULL : PyLong_FromLong(CHANGED);
        if (self->held == NULL) /* cleared meanwhile */
            return PyLong_FromLong(CHANGED);
    }
    for (Py_ssize_t i = 0; i < self->n_stamps; i++) { /* a large model has evicted all of this from the caches */
        const char *body = self->stamps[i].body;
        __builtin_prefetch(body);
        __builtin_prefetch(body + 64);
        __builtin_prefetch(body + 128);
    }
    long found = SAME;
    for (Py_ssize_t i = 0; i < self->n_stamps; i++) {
        Stamp *stamp = &self->stamps[i];
        Handle handle = &stamp->body;
        void *data;
        int64_t rank, *sizes, *strides;
        int32_t dtype;
        if (call->needs_gradient(stamp->body) != stamp->needs_gradient || call->data(handle, &data)
            || call->rank(handle, &rank) || rank != stamp->rank || call->dtype(handle, &dtype) || dtype != stamp->dtype
            || call->sizes(handle, &sizes) || call->strides(handle, &strides))
            return PyLong_FromLong(CHANGED);
        for (int64_t d = 0; d < rank; d++)
            if (sizes[d] != stamp->layout[d] || strides[d] != stamp->layout[rank + d])
                return PyLong_FromLong(CHANGED);
        if (data != stamp->data && has_changed_device(call, stamp))
            return PyLong_FromLong(CHANGED);
        if (call->version(handle) != stamp->version || data != stamp->data)
            found = WRITTEN;
    }
    return PyLong_FromLong(found);
}

static PyObject *
stamps_renew(Stamps *self, PyObject *Py_UNUSED(ignored))
{
    for (Py_ssize_t i = 0; i < self->n_stamps; i++) {
        Stamp *stamp = &self->stamps[i];
        if (self->call.data(&stamp->body, &stamp->data))
            stamp->data = NULL;
        stamp->version = self->call.version(&stamp->body);
    }
    self->n_renewals++;
    Py_RETURN_NONE;
}

static PyMemberDef stamps_members[] = {
    {"n_renewals", T_LONG, offsetof(Stamps, n_renewals), READONLY, "How often counts and addresses were taken anew."},
    {NULL, 0, 0, 0, NULL},
};

static PyMethodDef stamps_methods[] = {
    {"compare", (PyCFunction)stamps_compare, METH_NOARGS,
     "Return 0 where a tensor has another form or the comparison does not hold, 1 where a tensor was written to or moved, 2 where "
     "all is as it was."},
    {"renew", (PyCFunction)stamps_renew, METH_NOARGS,
     "Take counts of writes and addresses anew."},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot stamps_slots[] = {
    {Py_tp_doc, "Tensors as they are, and what else is compared: tensors, handles, functions, comparison (optional)."},
    {Py_tp_new, stamps_new},
    {Py_tp_dealloc, stamps_dealloc},
    {Py_tp_traverse, stamps_traverse},
    {Py_tp_clear, stamps_clear},
    {Py_tp_methods, stamps_methods},
    {Py_tp_members, stamps_members},
    {0, NULL},
};

static PyType_Spec stamps_spec = {
    .name = "hub.frontend.direct.native.Stamps",
    .basicsize = sizeof(Stamps),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_IMMUTABLETYPE,
    .slots = stamps_slots,
};

/* --- Forms -----------------------------------------------------------------------------------------------------------------
 * The inputs that one path takes. Before each call they are compared in Python's objects; in Python itself, most of the time
 * would go into fetching instructions and objects that a model's kernels have evicted from the caches.
 */

typedef struct {
    Py_ssize_t place;
    PyObject *value;
} Plain;

typedef struct {
    PyObject_HEAD
    PyObject *held; /* a tuple that owns everything that the pointers below refer to */
    Py_ssize_t n_args, n_leaves;
    PyObject *names; /* a tuple: those of the keyword inputs */
    Plain *plain;    /* leaves that are no tensors */
    Py_ssize_t n_plain;
    Py_ssize_t *tensors; /* places of the tensors among the leaves */
    Py_ssize_t n_tensors;
    uintptr_t *strange; /* identities of tensors that must not be inputs, in ascending order */
    Py_ssize_t n_strange;
    PyObject *fit;      /* compares the tensors' forms */
    Comparison *modes;
} Form;

static int
form_traverse(Form *self, visitproc visit, void *arg)
{
    Py_VISIT(self->held);
    Py_VISIT(Py_TYPE(self));
    return 0;
}

static int
form_clear(Form *self)
{
    PyMem_Free(self->plain);
    PyMem_Free(self->tensors);
    PyMem_Free(self->strange);
    self->plain = NULL;
    self->tensors = NULL;
    self->strange = NULL;
    self->n_plain = self->n_tensors = self->n_strange = 0;
    self->names = self->fit = NULL;
    self->modes = NULL;
    Py_CLEAR(self->held);
    return 0;
}

static void
form_dealloc(Form *self)
{
    PyTypeObject *type = Py_TYPE(self);
    PyObject_GC_UnTrack(self);
    form_clear(self);
    type->tp_free(self);
    Py_DECREF(type);
}

static int
ascending(const void *one, const void *other)
{
    uintptr_t a = *(const uintptr_t *)one, b = *(const uintptr_t *)other;
    return (a > b) - (a < b);
}

static PyObject *
form_new(PyTypeObject *type, PyObject *args, PyObject *Py_UNUSED(kwargs))
{
    PyObject *names, *leaves, *tensor_type, *strange, *fit, *modes;
    Py_ssize_t n_args;
    if (!PyArg_ParseTuple(args, "nO!O!O!O!OO", &n_args, &PyTuple_Type, &names, &PyTuple_Type, &leaves, &PyType_Type,
                          &tensor_type, &PyTuple_Type, &strange, &fit, &modes)
        || !is_comparison(modes))
        return NULL;
    Form *self = (Form *)type->tp_alloc(type, 0);
    if (self == NULL)
        return NULL;
    Py_ssize_t n = PyTuple_GET_SIZE(leaves), n_strange = PyTuple_GET_SIZE(strange);
    self->plain = room(n, sizeof(Plain));
    self->tensors = room(n, sizeof(Py_ssize_t));
    self->strange = room(n_strange, sizeof(uintptr_t));
    PyObject *values = PyTuple_New(n); /* not the tensors themselves: those of a finished call must be freed */
    if (self->plain == NULL || self->tensors == NULL || self->strange == NULL || values == NULL)
        goto failed;
    for (Py_ssize_t i = 0; i < n; i++) {
        PyObject *leaf = PyTuple_GET_ITEM(leaves, i);
        bool is_tensor = PyObject_TypeCheck(leaf, (PyTypeObject *)tensor_type);
        PyTuple_SET_ITEM(values, i, Py_NewRef(is_tensor ? Py_None : leaf));
        if (is_tensor)
            self->tensors[self->n_tensors++] = i;
        else
            self->plain[self->n_plain++] = (Plain){i, leaf};
    }
    for (Py_ssize_t i = 0; i < n_strange; i++)
        self->strange[i] = (uintptr_t)PyTuple_GET_ITEM(strange, i); /* held by whoever watches the model */
    self->n_strange = n_strange;
    qsort(self->strange, (size_t)n_strange, sizeof(uintptr_t), ascending);
    if ((self->held = PyTuple_Pack(4, names, values, fit, modes)) == NULL)
        goto failed;
    self->n_args = n_args;
    self->n_leaves = n;
    self->names = names;
    self->fit = fit;
    self->modes = (Comparison *)modes;
    Py_DECREF(values);
    return (PyObject *)self;

failed:
    Py_XDECREF(values);
    Py_DECREF(self);
    return NULL;
}

/* Return 1 if an input that is no tensor is what it was, 0 if not, -1 with an error set. 1, 1.0 and True differ, and so do
 * 0.0 and -0.0. */
static int
is_same_plain(PyObject *value, PyObject *first)
{
    if (Py_TYPE(value) != Py_TYPE(first))
        return 0;
    if (PyFloat_CheckExact(value)) {
        double one = PyFloat_AS_DOUBLE(value), other = PyFloat_AS_DOUBLE(first);
        return memcmp(&one, &other, sizeof(double)) == 0;
    }
    return PyObject_RichCompareBool(value, first, Py_EQ);
}

static bool
is_strange(const Form *self, PyObject *tensor)
{
    uintptr_t key = (uintptr_t)tensor;
    return self->n_strange && bsearch(&key, self->strange, (size_t)self->n_strange, sizeof(uintptr_t), ascending) != NULL;
}

/* Return 1 if these leaves, a tuple or list, have this form in these modes, 0 if not, -1 with an error set. */
static int
has_form(Form *self, PyObject *leaves)
{
    if (PySequence_Fast_GET_SIZE(leaves) != self->n_leaves)
        return 0;
    PyObject **items = PySequence_Fast_ITEMS(leaves);
    for (Py_ssize_t i = 0; i < self->n_plain; i++) {
        int same = is_same_plain(items[self->plain[i].place], self->plain[i].value);
        if (same <= 0)
            return same;
    }
    PyObject *tensors = PyTuple_New(self->n_tensors);
    if (tensors == NULL)
        return -1;
    int same = 1;
    for (Py_ssize_t i = 0; i < self->n_tensors; i++) {
        PyObject *tensor = items[self->tensors[i]], **place = _PyObject_GetDictPtr(tensor);
        PyTuple_SET_ITEM(tensors, i, Py_NewRef(tensor));
        /* `torch._dynamo.mark_dynamic` sets attributes on tensors. */
        same &= !is_strange(self, tensor) && (place == NULL || *place == NULL || PyDict_GET_SIZE(*place) == 0);
    }
    if (same) {
        PyObject *fits = PyObject_Call(self->fit, tensors, NULL);
        same = fits == NULL ? -1 : fits == Py_True;
        Py_XDECREF(fits);
    }
    Py_DECREF(tensors);
    if (same <= 0)
        return same;
    return self->modes == NULL ? 0 : is_as_it_was(self->modes); /* cleared meanwhile */
}

/* Return 1 if a dict has this form's names in this order, and add its values to a tuple; 0 if not. */
static int
take_named(Form *self, PyObject *kwargs, PyObject *leaves)
{
    Py_ssize_t position = 0, place = 0;
    PyObject *name, *value;
    while (PyDict_Next(kwargs, &position, &name, &value)) {
        PyObject *wanted = PyTuple_GET_ITEM(self->names, place);
        if (name != wanted && (!PyUnicode_Check(name) || PyUnicode_Compare(name, wanted) != 0))
            return 0;
        PyTuple_SET_ITEM(leaves, self->n_args + place++, Py_NewRef(value));
    }
    return 1;
}

static PyObject *
form_leaves(Form *self, PyObject *const *given, Py_ssize_t n_given)
{
    if (n_given != 2 || !PyTuple_Check(given[0]) || !PyDict_Check(given[1])) {
        PyErr_SetString(PyExc_TypeError, "a tuple and a dict are needed");
        return NULL;
    }
    PyObject *args = given[0], *kwargs = given[1];
    if (self->held == NULL || PyTuple_GET_SIZE(args) != self->n_args
        || PyDict_GET_SIZE(kwargs) != PyTuple_GET_SIZE(self->names))
        Py_RETURN_NONE;
    PyObject *held = Py_NewRef(self->held); /* what is compared may run the garbage collector, which may clear this */
    PyObject *leaves;
    int same = 1;
    if (PyDict_GET_SIZE(kwargs) == 0)
        leaves = Py_NewRef(args);
    else if ((leaves = PyTuple_New(self->n_args + PyDict_GET_SIZE(kwargs))) != NULL) {
        for (Py_ssize_t i = 0; i < self->n_args; i++)
            PyTuple_SET_ITEM(leaves, i, Py_NewRef(PyTuple_GET_ITEM(args, i)));
        same = take_named(self, kwargs, leaves);
    }
    if (leaves == NULL)
        same = -1;
    else if (same)
        same = has_form(self, leaves);
    Py_DECREF(held);
    if (same > 0)
        return leaves;
    Py_XDECREF(leaves);
    return same < 0 ? NULL : Py_NewRef(Py_None);
}

static PyObject *
form_takes(Form *self, PyObject *leaves)
{
    if (!PyTuple_Check(leaves) && !PyList_Check(leaves)) {
        PyErr_SetString(PyExc_TypeError, "a tuple or a list is needed");
        return NULL;
    }
    if (self->held == NULL)
        Py_RETURN_FALSE;
    PyObject *held = Py_NewRef(self->held);
    int same = has_form(self, leaves);
    Py_DECREF(held);
    return same < 0 ? NULL : PyBool_FromLong(same);
}

static PyMethodDef form_methods[] = {
    {"leaves", (PyCFunction)(void (*)(void))form_leaves, METH_FASTCALL,
     "Return a call's inputs, positional ones first, if they have this form; else None. The call is given as tuple and dict."},
    {"takes", (PyCFunction)form_takes, METH_O, "Return whether these leaves have this form."},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot form_slots[] = {
    {Py_tp_doc, "The inputs of a path: n_args, names, leaves, tensor_type, strange, fit, modes."},
    {Py_tp_new, form_new},
    {Py_tp_dealloc, form_dealloc},
    {Py_tp_traverse, form_traverse},
    {Py_tp_clear, form_clear},
    {Py_tp_methods, form_methods},
    {0, NULL},
};

static PyType_Spec form_spec = {
    .name = "hub.frontend.direct.native.Form",
    .basicsize = sizeof(Form),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_IMMUTABLETYPE,
    .slots = form_slots,
};

/* --- Guards ----------------------------------------------------------------------------------------------------------------
 * Dynamo's C++ code drops an exception of a Python guard and takes it for a guard that fails. Python delivers signals at the
 * first instruction of a Python function, before any `try`: Ctrl-C would be lost there.
 */

typedef struct {
    PyObject_HEAD
    PyObject *check, *on_error;
} Guard;

static int
guard_traverse(Guard *self, visitproc visit, void *arg)
{
    Py_VISIT(self->check);
    Py_VISIT(self->on_error);
    Py_VISIT(Py_TYPE(self));
    return 0;
}

static int
guard_clear(Guard *self)
{
    Py_CLEAR(self->check);
    Py_CLEAR(self->on_error);
    return 0;
}

static void
guard_dealloc(Guard *self)
{
    PyTypeObject *type = Py_TYPE(self);
    PyObject_GC_UnTrack(self);
    guard_clear(self);
    type->tp_free(self);
    Py_DECREF(type);
}

static PyObject *
guard_new(PyTypeObject *type, PyObject *args, PyObject *Py_UNUSED(kwargs))
{
    PyObject *check, *on_error;
    if (!PyArg_ParseTuple(args, "OO", &check, &on_error))
        return NULL;
    Guard *self = (Guard *)type->tp_alloc(type, 0);
    if (self == NULL)
        return NULL;
    self->check = Py_NewRef(check);
    self->on_error = Py_NewRef(on_error);
    return (PyObject *)self;
}

static PyObject *
guard_call(Guard *self, PyObject *args, PyObject *kwargs)
{
    if (self->check == NULL) /* the garbage collector has cleared it */
        Py_RETURN_FALSE;
    PyObject *check = Py_NewRef(self->check), *on_error = Py_NewRef(self->on_error);
    PyObject *answer = PyObject_Call(check, args, kwargs);
    if (answer == NULL) {
        PyObject *type, *error, *traceback;
        PyErr_Fetch(&type, &error, &traceback);
        PyErr_NormalizeException(&type, &error, &traceback);
        if (error != NULL && traceback != NULL)
            PyException_SetTraceback(error, traceback);
        if (error != NULL)
            answer = PyObject_CallOneArg(on_error, error);
        Py_XDECREF(type);
        Py_XDECREF(error);
        Py_XDECREF(traceback);
    }
    Py_DECREF(check);
    Py_DECREF(on_error);
    return answer;
}

static PyType_Slot guard_slots[] = {
    {Py_tp_doc, "A function, and another one that gets the error that it raises and returns the answer in its place."},
    {Py_tp_new, guard_new},
    {Py_tp_dealloc, guard_dealloc},
    {Py_tp_traverse, guard_traverse},
    {Py_tp_clear, guard_clear},
    {Py_tp_call, guard_call},
    {0, NULL},
};

static PyType_Spec guard_spec = {
    .name = "hub.frontend.direct.native.Guard",
    .basicsize = sizeof(Guard),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_IMMUTABLETYPE,
    .slots = guard_slots,
};

static int
fill(PyObject *module)
{
    PyType_Spec *specs[] = {&comparison_spec, &stamps_spec, &form_spec, &guard_spec};
    for (size_t i = 0; i < sizeof(specs) / sizeof(specs[0]); i++) {
        PyObject *type = PyType_FromModuleAndSpec(module, specs[i], NULL);
        int failed = type == NULL || PyModule_AddType(module, (PyTypeObject *)type) < 0;
        Py_XDECREF(type);
        if (failed)
            return -1;
    }
    return 0;
}

static PyModuleDef_Slot module_slots[] = {{Py_mod_exec, fill}, {0, NULL}};

static struct PyModuleDef module = {
    PyModuleDef_HEAD_INIT, .m_name = "native", .m_size = 0, .m_slots = module_slots,
};

PyMODINIT_FUNC
PyInit_native(void)
{
    return PyModuleDef_Init(&module);
}
