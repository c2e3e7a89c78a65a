/* libsystemd's reader of journal files, for sources/journal_child.py.

   The library is looked for when the module is imported (dlopen): neither its headers nor the library are needed to build, and a wheel reads
   journals wherever there is a libsystemd of release 209 or later. A Reader has the few calls of systemd-python's that are used, under their
   names; `entries` takes many entries at once into buffers of columns. An entry's fields are enumerated once: looking one field up walks over
   all of them, too. */

#define PY_SSIZE_T_CLEAN
#ifndef Py_LIMITED_API
#define Py_LIMITED_API 0x030A0000
#endif
#include <Python.h>
#include <dlfcn.h>
#include <errno.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

typedef struct sd_journal sd_journal;
typedef struct { unsigned char bytes[16]; } Id;

static struct {
    int (*open_files)(sd_journal **, const char **, int);
    void (*close)(sd_journal *);
    int (*next)(sd_journal *);
    int (*get_realtime_usec)(sd_journal *, uint64_t *);
    int (*get_monotonic_usec)(sd_journal *, uint64_t *, Id *);
    int (*get_data)(sd_journal *, const char *, const void **, size_t *);
    int (*enumerate_data)(sd_journal *, const void **, size_t *);
    void (*restart_data)(sd_journal *);
    int (*set_data_threshold)(sd_journal *, size_t);
    int (*get_cursor)(sd_journal *, char **);
    int (*add_match)(sd_journal *, const void *, size_t);
    int (*add_disjunction)(sd_journal *);
    int (*seek_head)(sd_journal *);
    int (*seek_realtime_usec)(sd_journal *, uint64_t);
    int (*query_unique)(sd_journal *, const char *);
    int (*enumerate_unique)(sd_journal *, const void **, size_t *);
} sd;

static const struct { const char *name; void *at; } NAMES[] = {
    {"open_files", &sd.open_files}, {"close", &sd.close}, {"next", &sd.next}, {"get_realtime_usec", &sd.get_realtime_usec},
    {"get_monotonic_usec", &sd.get_monotonic_usec}, {"get_data", &sd.get_data}, {"enumerate_data", &sd.enumerate_data},
    {"restart_data", &sd.restart_data}, {"set_data_threshold", &sd.set_data_threshold}, {"get_cursor", &sd.get_cursor},
    {"add_match", &sd.add_match}, {"add_disjunction", &sd.add_disjunction}, {"seek_head", &sd.seek_head},
    {"seek_realtime_usec", &sd.seek_realtime_usec}, {"query_unique", &sd.query_unique}, {"enumerate_unique", &sd.enumerate_unique},
};

enum { MOST_KEY = 128, PREFIX = 8 }; /* PREFIX: the length of "journal:" */

typedef struct { char *at; size_t size, room; } Bytes;

typedef struct {
    PyObject_HEAD
    sd_journal *journal;
    PyObject *writers;          /* the number of each writer that was met: stream, process, boot */
    char last[MOST_KEY];        /* the writer of the entry before */
    size_t last_size;
    long last_code;
} Reader;

static int add(Bytes *to, const void *from, size_t size) {
    if (to->room - to->size < size) {
        size_t room = 2 * to->room + size + 4096;
        char *at = realloc(to->at, room);
        if (at == NULL) return -1;
        to->at = at;
        to->room = room;
    }
    if (size) memcpy(to->at + to->size, from, size);
    to->size += size;
    return 0;
}

static PyObject *failed(int code) {
    PyObject *arguments = Py_BuildValue("(is)", -code, strerror(-code));
    if (arguments != NULL) {
        PyErr_SetObject(PyExc_OSError, arguments);
        Py_DECREF(arguments);
    }
    return NULL;
}

static int is_open(Reader *self) {
    if (self->journal == NULL) PyErr_SetString(PyExc_ValueError, "the journal is closed");
    return self->journal != NULL;
}

/* -- opening ------------------------------------------------------------------------------------------------------------ */

static PyObject *reader_new(PyTypeObject *type, PyObject *arguments, PyObject *keywords) {
    static char *names[] = {"files", NULL};
    PyObject *files;
    if (!PyArg_ParseTupleAndKeywords(arguments, keywords, "O!", names, &PyList_Type, &files)) return NULL;
    if (sd.open_files == NULL) {
        PyErr_SetString(PyExc_ImportError, "libsystemd is not here");
        return NULL;
    }
    Py_ssize_t count = PyList_Size(files);
    const char **paths = calloc((size_t)count + 1, sizeof *paths);
    PyObject *kept = PyList_New(0);
    sd_journal *journal = NULL;
    int code = -ENOMEM;
    for (Py_ssize_t i = 0; paths != NULL && kept != NULL && i < count; i++) {
        PyObject *path = PyUnicode_EncodeFSDefault(PyList_GetItem(files, i));
        if (path == NULL || PyList_Append(kept, path) < 0) {
            Py_XDECREF(path);
            goto end;
        }
        Py_DECREF(path); /* the list keeps it */
        paths[i] = PyBytes_AsString(path);
    }
    if (paths != NULL && kept != NULL) code = sd.open_files(&journal, paths, 0);
    if (code < 0) failed(code);
end:
    free(paths);
    Py_XDECREF(kept);
    if (PyErr_Occurred()) return NULL;
    allocfunc allocate = (allocfunc)PyType_GetSlot(type, Py_tp_alloc);
    Reader *self = (Reader *)allocate(type, 0);
    if (self == NULL) {
        sd.close(journal);
        return NULL;
    }
    self->journal = journal;
    self->last_code = -1;
    self->writers = PyDict_New();
    if (self->writers == NULL) {
        Py_DECREF(self);
        return NULL;
    }
    sd.set_data_threshold(journal, 0);
    return (PyObject *)self;
}

static PyObject *reader_close(Reader *self, PyObject *none) {
    (void)none;
    if (self->journal != NULL) sd.close(self->journal);
    self->journal = NULL;
    Py_RETURN_NONE;
}

static void reader_dealloc(Reader *self) {
    PyTypeObject *type = Py_TYPE((PyObject *)self);
    if (self->journal != NULL) sd.close(self->journal);
    Py_XDECREF(self->writers);
    freefunc release = (freefunc)PyType_GetSlot(type, Py_tp_free);
    release(self);
    Py_DECREF(type);
}

/* -- single calls ------------------------------------------------------------------------------------------------------- */

#define DONE(call)                             \
    if (!is_open(self)) return NULL;           \
    int code = call;                           \
    if (code < 0) return failed(code);         \
    Py_RETURN_NONE

static PyObject *add_match(Reader *self, PyObject *term) {
    Py_ssize_t size;
    const char *text = PyUnicode_AsUTF8AndSize(term, &size);
    if (text == NULL) return NULL;
    DONE(sd.add_match(self->journal, text, (size_t)size));
}

static PyObject *add_disjunction(Reader *self, PyObject *none) { (void)none; DONE(sd.add_disjunction(self->journal)); }

static PyObject *seek_head(Reader *self, PyObject *none) { (void)none; DONE(sd.seek_head(self->journal)); }

static PyObject *seek_realtime(Reader *self, PyObject *time) {
    uint64_t at = PyLong_AsUnsignedLongLong(time);
    if (PyErr_Occurred()) return NULL;
    DONE(sd.seek_realtime_usec(self->journal, at));
}

static PyObject *next_entry(Reader *self, PyObject *none) {
    (void)none;
    if (!is_open(self)) return NULL;
    int code = sd.next(self->journal);
    return code < 0 ? failed(code) : PyBool_FromLong(code);
}

static PyObject *get_realtime(Reader *self, PyObject *none) {
    (void)none;
    if (!is_open(self)) return NULL;
    uint64_t time;
    int code = sd.get_realtime_usec(self->journal, &time);
    return code < 0 ? failed(code) : PyLong_FromUnsignedLongLong(time);
}

static PyObject *get_one(Reader *self, PyObject *name) {
    if (!is_open(self)) return NULL;
    Py_ssize_t length;
    const char *text = PyUnicode_AsUTF8AndSize(name, &length);
    if (text == NULL) return NULL;
    const void *data;
    size_t size;
    int code = sd.get_data(self->journal, text, &data, &size);
    if (code == -ENOENT) {
        PyErr_SetObject(PyExc_KeyError, name);
        return NULL;
    }
    if (code < 0) return failed(code);
    return PyBytes_FromStringAndSize((const char *)data + length + 1, (Py_ssize_t)size - length - 1);
}

static PyObject *query_unique(Reader *self, PyObject *name) {
    if (!is_open(self)) return NULL;
    Py_ssize_t length;
    const char *text = PyUnicode_AsUTF8AndSize(name, &length);
    if (text == NULL) return NULL;
    int code = sd.query_unique(self->journal, text);
    if (code < 0) return failed(code);
    PyObject *found = PyList_New(0);
    const void *data;
    size_t size;
    while (found != NULL && (code = sd.enumerate_unique(self->journal, &data, &size)) > 0) {
        PyObject *value = PyBytes_FromStringAndSize((const char *)data + length + 1, (Py_ssize_t)size - length - 1);
        if (value == NULL || PyList_Append(found, value) < 0) Py_CLEAR(found);
        Py_XDECREF(value);
    }
    if (found != NULL && code < 0) {
        Py_DECREF(found);
        return failed(code);
    }
    return found;
}

/* -- many entries ------------------------------------------------------------------------------------------------------- */

/* All fields of the entry: a dict of bytes, a list of bytes where a field is there more than once; NULL with *code < 0 if it is damaged. */
static PyObject *all_fields(sd_journal *journal, int *code) {
    PyObject *made = PyDict_New();
    const void *data;
    size_t size;
    sd.restart_data(journal);
    *code = 0;
    while (made != NULL && (*code = sd.enumerate_data(journal, &data, &size)) > 0) {
        const char *sign = memchr(data, '=', size);
        if (sign == NULL) continue;
        const char *text = data;
        PyObject *name = PyUnicode_DecodeUTF8(text, sign - text, "strict");
        if (name == NULL) { /* damaged: systemd-python fails here as well */
            PyErr_Clear();
            Py_DECREF(made);
            *code = -EBADMSG;
            return NULL;
        }
        PyObject *value = PyBytes_FromStringAndSize(sign + 1, text + size - sign - 1);
        PyObject *there = PyDict_GetItemWithError(made, name);
        int bad = value == NULL;
        if (!bad && there == NULL) {
            bad = PyDict_SetItem(made, name, value) < 0;
        } else if (!bad && PyList_Check(there)) {
            bad = PyList_Append(there, value) < 0;
        } else if (!bad) {
            PyObject *both = Py_BuildValue("[OO]", there, value);
            bad = both == NULL || PyDict_SetItem(made, name, both) < 0;
            Py_XDECREF(both);
        }
        Py_DECREF(name);
        Py_XDECREF(value);
        if (bad) Py_CLEAR(made);
    }
    if (made != NULL && *code < 0) Py_CLEAR(made);
    return made;
}

typedef struct { const char *at; size_t size; } Field;
enum { MESSAGE, STREAM, PID, FIELDS };
static const struct { const char *name; size_t size; } ASKED[FIELDS] = {{"MESSAGE=", 8}, {"_STREAM_ID=", 11}, {"_PID=", 5}};

/* The fields that are asked for, each the first of its name. The message is copied, for data are valid until the next call only. */
static int take_fields(sd_journal *journal, Field found[FIELDS], char key[MOST_KEY], Bytes *messages) {
    const void *data;
    size_t size, used = 0;
    int code;
    for (int i = 0; i < FIELDS; i++) found[i].at = NULL;
    sd.restart_data(journal);
    while ((code = sd.enumerate_data(journal, &data, &size)) > 0) {
        const char *text = data;
        if (text[0] != 'M' && text[0] != '_') continue;
        for (int i = 0; i < FIELDS; i++) {
            if (found[i].at != NULL || size < ASKED[i].size || memcmp(text, ASKED[i].name, ASKED[i].size) != 0) continue;
            const char *value = text + ASKED[i].size;
            found[i].size = size - ASKED[i].size;
            if (i == MESSAGE) {
                found[i].at = "";
                if (add(messages, value, found[i].size) < 0) return -ENOMEM;
            } else if (used + found[i].size < MOST_KEY - 18) {
                memcpy(key + used, value, found[i].size);
                found[i].at = key + used;
                used += found[i].size;
                key[used++] = '\0';
            }
            break;
        }
    }
    return code;
}

static int is_damage(int code) {
    return code == -EBADMSG || code == -EPROTONOSUPPORT || code == -ENODATA || code == -EADDRNOTAVAIL || code == -E2BIG || code == -ENOENT ||
           code == -EIO;
}

static PyObject *hex_of(const Id *id) {
    char text[33];
    static const char digits[] = "0123456789abcdef";
    for (int i = 0; i < 16; i++) {
        text[2 * i] = digits[id->bytes[i] >> 4];
        text[2 * i + 1] = digits[id->bytes[i] & 15];
    }
    return PyUnicode_FromStringAndSize(text, 32);
}

static PyObject *get_monotonic(Reader *self, PyObject *none) {
    (void)none;
    if (!is_open(self)) return NULL;
    uint64_t time;
    Id boot;
    int code = sd.get_monotonic_usec(self->journal, &time, &boot);
    return code < 0 ? failed(code) : Py_BuildValue("(Ky#)", (unsigned long long)time, (const char *)boot.bytes, (Py_ssize_t)16);
}

typedef struct { Bytes time, mono, code, message_end, messages, cursor_end, cursors; PyObject *others; long rows, unread; int left_out; } Block;

static int other(Block *block, PyObject *item) {
    PyObject *placed = item == NULL ? NULL : Py_BuildValue("(lO)", block->rows, item);
    int code = placed == NULL ? -1 : PyList_Append(block->others, placed);
    Py_XDECREF(placed);
    Py_XDECREF(item);
    return code;
}

/* The number of a writer. 0 with an exception set: no memory; -1: its fields are damaged. */
static int writer_of(Reader *self, const char *key, size_t size, const Id *boot, Block *block, long *writer) {
    if (self->last_code >= 0 && size == self->last_size && memcmp(key, self->last, size) == 0) {
        *writer = self->last_code;
        return 1;
    }
    PyObject *name = PyBytes_FromStringAndSize(key, (Py_ssize_t)size);
    if (name == NULL) return 0;
    PyObject *there = PyDict_GetItemWithError(self->writers, name);
    int code = 1;
    if (there != NULL) {
        *writer = PyLong_AsLong(there);
    } else {
        int damage;
        PyObject *fields = all_fields(self->journal, &damage);
        *writer = (long)PyDict_Size(self->writers);
        PyObject *number = PyLong_FromLong(*writer);
        if (fields == NULL) code = damage < 0 ? damage : 0;
        else if (number == NULL || other(block, Py_BuildValue("(ON)", fields, hex_of(boot))) < 0) code = 0;
        else if (PyDict_SetItem(self->writers, name, number) < 0) code = 0;
        Py_XDECREF(fields);
        Py_XDECREF(number);
    }
    Py_DECREF(name);
    if (code == 1) {
        memcpy(self->last, key, size);
        self->last_size = size;
        self->last_code = *writer;
    }
    return code;
}

/* An entry with all of its fields. */
static int take_whole(Reader *self, Block *block, uint64_t time, uint64_t mono, const Id *boot, const char *cursor, PyObject *writer) {
    int damage;
    PyObject *fields = all_fields(self->journal, &damage);
    if (fields == NULL) return damage < 0 ? damage : 0;
    int code = other(block, Py_BuildValue("(KKsOON)", (unsigned long long)time, (unsigned long long)mono, cursor, writer, fields, hex_of(boot)));
    Py_DECREF(fields);
    return code < 0 ? 0 : 1;
}

/* Take the entry at which the reader stands. 1, or 0 with an exception set, or a negative error code of the entry. */
static int take_entry(Reader *self, Block *block, int64_t low, int64_t high, size_t shortest) {
    sd_journal *journal = self->journal;
    uint64_t time, mono;
    Id boot;
    Field found[FIELDS];
    char key[MOST_KEY], *cursor = NULL;
    int code = sd.get_realtime_usec(journal, &time);
    if (code < 0) return code;
    if ((int64_t)time < low || (int64_t)time >= high) {
        if (!block->left_out && other(block, PyTuple_New(0)) < 0) return 0;
        block->left_out = 1;
        return 1;
    }
    if ((code = sd.get_monotonic_usec(journal, &mono, &boot)) < 0) return code;
    size_t before = block->messages.size;
    if ((code = take_fields(journal, found, key, &block->messages)) == 0 && (code = sd.get_cursor(journal, &cursor)) >= 0) {
        char *rest = strstr(cursor, ";b="); /* what follows is in other columns, as journal_fields.place_of has it */
        if (rest != NULL) *rest = '\0';
        code = 1;
        int usual = found[MESSAGE].at != NULL && found[STREAM].at != NULL && found[PID].at != NULL;
        long writer = -1;
        if (usual) {
            size_t used = found[STREAM].size + found[PID].size + 2;
            memcpy(key + used, boot.bytes, 16);
            code = writer_of(self, key, used + 16, &boot, block, &writer);
        }
        if (code == 1 && usual && found[MESSAGE].size < shortest) {
            int64_t times[2] = {(int64_t)time, (int64_t)mono};
            int32_t number = (int32_t)writer;
            int bad = add(&block->time, times, 8) | add(&block->mono, times + 1, 8) | add(&block->code, &number, 4);
            bad |= add(&block->cursors, "journal:", PREFIX) | add(&block->cursors, cursor, strlen(cursor));
            int32_t ends[2] = {(int32_t)block->messages.size, (int32_t)block->cursors.size};
            bad |= add(&block->message_end, ends, 4) | add(&block->cursor_end, ends + 1, 4);
            if (bad) {
                PyErr_NoMemory();
                code = 0;
            } else {
                block->rows++;
                before = block->messages.size;
            }
        } else if (code == 1) {
            PyObject *number = usual ? PyLong_FromLong(writer) : Py_NewRef(Py_None);
            code = number == NULL ? 0 : take_whole(self, block, time, mono, &boot, cursor, number);
            Py_XDECREF(number);
        }
    }
    block->messages.size = before;
    free(cursor);
    if (code == 1) block->left_out = 0;
    return code;
}

static PyObject *taken(Bytes *from) {
    PyObject *made = PyBytes_FromStringAndSize(from->at, (Py_ssize_t)from->size);
    free(from->at);
    from->at = NULL;
    return made;
}

/* entries(low, high, shortest, most, left_out) -> columns of at most so many entries, the others, and where it stands. */
static PyObject *entries(Reader *self, PyObject *arguments) {
    long long low, high;
    Py_ssize_t shortest;
    long most;
    Block block = {.left_out = 0};
    if (!PyArg_ParseTuple(arguments, "LLnlp", &low, &high, &shortest, &most, &block.left_out) || !is_open(self)) return NULL;
    block.others = PyList_New(0);
    if (block.others == NULL) return NULL;
    int code = 1, more = 1;
    static const int32_t zero = 0;
    if (add(&block.message_end, &zero, 4) < 0 || add(&block.cursor_end, &zero, 4) < 0) PyErr_NoMemory();
    while (!PyErr_Occurred() && block.rows + PyList_Size(block.others) < most && block.messages.size < (1 << 28) && block.unread < most) {
        code = sd.next(self->journal);
        if (code == 0) {
            more = 0;
            break;
        }
        if (code > 0) code = take_entry(self, &block, low, high, (size_t)shortest);
        if (code < 0 && is_damage(code)) block.unread++;
        else if (code < 0) failed(code);
    }
    PyObject *made = NULL;
    if (!PyErr_Occurred())
        made = Py_BuildValue("(NNNNNNNOOli)", taken(&block.time), taken(&block.mono), taken(&block.code), taken(&block.message_end),
                             taken(&block.messages), taken(&block.cursor_end), taken(&block.cursors), block.others,
                             more ? Py_True : Py_False, block.unread, block.left_out);
    Bytes *all[] = {&block.time, &block.mono, &block.code, &block.message_end, &block.messages, &block.cursor_end, &block.cursors};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) free(all[i]->at);
    Py_DECREF(block.others);
    return made;
}

/* -- the module --------------------------------------------------------------------------------------------------------- */

static PyMethodDef METHODS[] = {
    {"close", (PyCFunction)reader_close, METH_NOARGS, "Close the files."},
    {"add_match", (PyCFunction)add_match, METH_O, "Take only entries with FIELD=value."},
    {"add_disjunction", (PyCFunction)add_disjunction, METH_NOARGS, "Or those of the matches that follow."},
    {"seek_head", (PyCFunction)seek_head, METH_NOARGS, "Stand before the first entry."},
    {"seek_realtime", (PyCFunction)seek_realtime, METH_O, "Stand before a time in microseconds."},
    {"query_unique", (PyCFunction)query_unique, METH_O, "List the values of a field."},
    {"_next", (PyCFunction)next_entry, METH_NOARGS, "Go to the next entry; say whether there is one."},
    {"_get_realtime", (PyCFunction)get_realtime, METH_NOARGS, "Return the wall clock of the entry."},
    {"_get_monotonic", (PyCFunction)get_monotonic, METH_NOARGS, "Return its boot clock and its boot."},
    {"_get", (PyCFunction)get_one, METH_O, "Return a field of it."},
    {"entries", (PyCFunction)entries, METH_VARARGS, "Take many entries as columns."},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot SLOTS[] = {
    {Py_tp_new, (void *)reader_new},
    {Py_tp_dealloc, (void *)reader_dealloc},
    {Py_tp_methods, METHODS},
    {Py_tp_doc, (void *)"Journal files, through libsystemd."},
    {0, NULL},
};

static PyType_Spec SPEC = {"libsystemd.Reader", sizeof(Reader), 0, Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE, SLOTS};

static struct PyModuleDef MODULE = {PyModuleDef_HEAD_INIT, "libsystemd", "Journal files, through libsystemd.", -1, NULL, NULL, NULL, NULL, NULL};

/* Find the library's functions; return why not, or NULL. */
static const char *find(void) {
    void *library = dlopen("libsystemd.so.0", RTLD_NOW | RTLD_LOCAL);
    if (library == NULL) return dlerror();
    for (size_t i = 0; i < sizeof NAMES / sizeof *NAMES; i++) {
        char name[64] = "sd_journal_";
        strcat(name, NAMES[i].name);
        void *function = dlsym(library, name);
        if (function == NULL) {
            memset(&sd, 0, sizeof sd);
            return "this libsystemd is older than release 209";
        }
        memcpy(NAMES[i].at, &function, sizeof function);
    }
    return NULL;
}

PyMODINIT_FUNC PyInit_libsystemd(void) {
    const char *why = find();
    PyObject *module = PyModule_Create(&MODULE), *type = PyType_FromSpec(&SPEC);
    if (module == NULL || type == NULL || PyModule_AddObjectRef(module, "Reader", type) < 0 || PyModule_AddStringConstant(module, "why_not", why ? why : "") < 0)
        Py_CLEAR(module);
    Py_XDECREF(type);
    return module;
}
