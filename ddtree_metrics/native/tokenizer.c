/* Reads the usual lines of a batch, driven by tables that dialects/compiled.py makes of the declarations.

   A line that is unusual in anything (a key twice, a sign, a number too long, a text that may be a secret) is left to the reference
   reader, by its number; nothing is read here that the reference would read in another way. The loop runs without the GIL on the
   buffers of an Arrow string array, and fills buffers that Arrow takes as they are. */

#define PY_SSIZE_T_CLEAN
#ifndef Py_LIMITED_API
#define Py_LIMITED_API 0x030A0000
#endif
#include <Python.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

enum { HEAD_BYTES = 96, MOST_PAIRS = 64, MOST_COLUMNS = 32, MOST_GROUPS = 24, MOST_STEPS = 1 << 15, MOST_LINE = 1 << 16, MOST_ASKS = 64 };
enum { MOST_SEQUENCES = 1 << 16, MOST_DIGITS = 9, MOST_DECIMALS = 6, MOST_ID = 200, DAY = 86400 };
enum { STRICT, LOOSE, PATTERN, LEFT };                                        /* how a kind of line is read */
enum { INT, WIDE, FLOAT, BOOL, INTS, IDS, TEXT, NOTHING };                    /* what a column or a group holds */
enum { SAME_LENGTH = 1, LENGTH = 2, MEAN = 4, NEED = 8, SURE = 16, LAST = 32 };  /* what a column or key is, beside its kind */
enum { KEEP = 1, SECRET = 2, MAYBE = 4, REFUSED = 8 };                        /* what a key is */
enum { ASK_KEY, ASK_RANKS };
enum { CHAR, SET, ANY, SPLIT, JUMP, SAVE, BEGIN, END, BORDER, MATCH };

typedef struct { char *at; size_t size, room; } Bytes;
typedef struct { int kind, flags; } Column;
typedef struct { uint32_t hash; int kind, target, flags, size; char *text; } Key;
typedef struct { int kind, fold, label, size, next; char *text; } Marker;
typedef struct { int mode, decimals, iteration, has_last, shared, count; char pair, sign; int32_t *program; unsigned char (*sets)[32]; Column *columns; } Kind;
typedef struct {
    int kinds, markers, keys, ranks, room, classes;
    Kind *kind;
    Marker *marker;
    Key *key;
    int *slot;                /* an open hash of the keys; -1 is free */
    Key *rank;                /* the words behind a stamp that were met so far */
    int first[256], last[256]; /* the markers by their first byte, a chain each */
    unsigned char class_of[256];
    uint16_t *next;           /* the automaton that finds any marker or key */
    unsigned char *found;
} Table;

typedef struct { Bytes valid, data, offsets, ends; int64_t nulls; } Out;
typedef struct { Bytes rows, naive, known, real, resolution, ranks; Out columns[MOST_COLUMNS]; Bytes extra_valid, extra_offsets, extra_keys, extra_ends, extra_data; int64_t extra_nulls, count; int ready; } Made;
typedef struct { int key, flags, decimals, count; const char *begin, *end; int64_t number; double real; size_t first; } Pair;
typedef struct { int64_t naive; int32_t resolution, ranks; unsigned char known, real; } Head;
typedef struct { int what, kind, size; char text[HEAD_BYTES]; } Ask;
typedef struct {
    const Table *table;
    Made *made;
    Bytes left, left_kind, left_begin, list, stack;
    Pair pair[MOST_PAIRS];
    int pairs, column_pair[MOST_COLUMNS], asks, out_of_memory, stamp_known;
    char stamp[19];
    int64_t stamp_us;
    int stamp_real;
    Ask ask[MOST_ASKS];
} Job;

static void *more(Job *job, Bytes *to, size_t size) {
    if (to->size + size > to->room) {
        size_t room = to->room * 2 > to->size + size ? to->room * 2 : to->size + size + 256;
        char *made = realloc(to->at, room);
        if (made == NULL) {
            job->out_of_memory = 1;
            return NULL;
        }
        to->at = made;
        to->room = room;
    }
    to->size += size;
    return to->at + to->size - size;
}

#define PUT(job, to, type, value) do { type *put_ = more(job, to, sizeof(type)); if (put_) { type made_ = (value); memcpy(put_, &made_, sizeof(type)); } } while (0)

static void put_bytes(Job *job, Bytes *to, const char *from, size_t size) {
    char *at = size ? more(job, to, size) : NULL;
    if (at != NULL) memcpy(at, from, size);
}

static void put_bit(Job *job, Bytes *to, int64_t row, int bit) {
    if ((row & 7) == 0) PUT(job, to, char, 0);
    if (bit && !job->out_of_memory) to->at[row >> 3] |= (char)(1 << (row & 7));
}

static int is_digit(char c) { return c >= '0' && c <= '9'; }
static int is_letter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }
static int is_word(char c) { return is_digit(c) || is_letter(c) || c == '_'; }
static char low(char c) { return c >= 'A' && c <= 'Z' ? (char)(c + 32) : c; }

static uint32_t hash_of(int kind, const char *text, int size) {
    uint32_t hash = 2166136261u ^ (uint32_t)kind * 97u;
    for (int i = 0; i < size; i++) hash = (hash ^ (unsigned char)text[i]) * 16777619u;
    return hash;
}

static int find_key(const Table *table, int kind, const char *text, int size) {
    uint32_t hash = hash_of(kind, text, size);
    for (uint32_t at = hash & (uint32_t)(table->room - 1); table->slot[at] >= 0; at = (at + 1) & (uint32_t)(table->room - 1)) {
        const Key *key = table->key + table->slot[at];
        if (key->hash == hash && key->kind == kind && key->size == size && memcmp(key->text, text, (size_t)size) == 0) return table->slot[at];
    }
    return -1;
}

/* Remember what the tables do not know; Python is asked, and the lines are tried again. Always 0: the line is not read. */
static int asked(Job *job, int what, int kind, const char *text, int size) {
    if (size < 1 || size > HEAD_BYTES || job->asks == MOST_ASKS) return 0;
    for (int i = 0; i < job->asks; i++)
        if (job->ask[i].what == what && job->ask[i].kind == kind && job->ask[i].size == size && memcmp(job->ask[i].text, text, (size_t)size) == 0) return 0;
    Ask *ask = job->ask + job->asks++;
    ask->what = what, ask->kind = kind, ask->size = size;
    memcpy(ask->text, text, (size_t)size);
    return 0;
}

/* Numbers: digits, no sign, exact. Each returns whether that is all that stands there. */
static int read_int(const char *at, const char *end, int most, int64_t *to) {
    int64_t value = 0;
    if (at == end || end - at > most) return 0;
    for (; at < end; at++) {
        if (!is_digit(*at)) return 0;
        value = value * 10 + (*at - '0');
    }
    *to = value;
    return 1;
}

static int read_float(const char *at, const char *end, double *to, int *decimals) {
    static const double power[] = {1, 10, 100, 1e3, 1e4, 1e5, 1e6};
    const char *dot = memchr(at, '.', (size_t)(end - at));
    int64_t whole, part = 0;
    *decimals = dot == NULL ? 0 : (int)(end - dot - 1);
    if (*decimals > MOST_DECIMALS || !read_int(at, dot == NULL ? end : dot, 8, &whole)) return 0;
    if (dot != NULL && !read_int(dot + 1, end, MOST_DECIMALS, &part)) return 0;
    *to = ((double)whole * power[*decimals] + (double)part) / power[*decimals]; /* both are exact: one rounding, as of strtod */
    return 1;
}

/* What is kept of a value without a column: a number, with a unit or in a list, or a short word; see secrets.is_plain. */
static int is_kept(const char *at, const char *end, int flags, int loose) {
    int64_t number;
    size_t size = (size_t)(end - at);
    if (flags & SECRET) return read_int(at, end, MOST_DIGITS, &number);
    if ((flags & MAYBE) && size >= 16) return 0;
    for (const char *c = at; c + 2 < end; c++)
        if (c[0] == '.' && c[1] == '.' && c[2] == '.') return 0;
    if (*at == '[' || (!loose && end[-1] == ']')) {
        int digits = 0;
        if (end[-1] != ']' || (!loose && (*at == '[' || *at == ' '))) return 0;
        for (const char *c = at; c < end; c++) {
            digits |= is_digit(*c);
            if (!is_digit(*c) && memchr(",. -[]", *c, 6) == NULL) return 0;
        }
        /* One bracket each. */
        const char *open = memchr(at, '[', size);
        return digits && open != NULL && memchr(open + 1, '[', (size_t)(end - open - 1)) == NULL && memchr(at, ']', size - 1) == NULL &&
               (*at == '[' || (open > at + 1 && open[-1] == ' ' && memchr(at, ' ', (size_t)(open - 1 - at)) == NULL && memchr(at, ',', (size_t)(open - at)) == NULL));
    }
    for (const char *c = at; c < end; c++)
        if (*c <= 32 || *c == 127 || (unsigned char)*c > 127 || memchr("\"'(){}[],;|=@", *c, 13) != NULL) return 0;
    if (loose && size >= 5 && size <= 6) {
        char word[6];
        for (size_t i = 0; i < size; i++) word[i] = low(at[i]);
        if (memcmp(word, size == 5 ? "basic" : "bearer", size) == 0) return 0;
    }
    if (size < 6) return 1;
    const char *c = at;
    if (is_letter(*c)) {
        for (c++; c < end && *c >= 'a' && *c <= 'z'; c++) {}
        return c == end && size <= 15;
    }
    if (!is_digit(*c)) return 0;
    while (c < end && (is_digit(*c) || memchr(".+-:%/TZ", *c, 8) != NULL)) c++;
    const char *unit = c;
    while (c < end && is_letter(*c)) c++;
    if (c - unit > 8) return 0;
    if (c < end && *c == '/' && c > unit) {
        for (unit = ++c; c < end && is_letter(*c); c++) {}
        if (c == unit || c - unit > 8) return 0;
    }
    return c == end;
}

static int read_ints(Job *job, const char *at, const char *end, Pair *pair) {
    char closing = *at == '[' ? ']' : ')';
    if (end - at < 2 || end[-1] != closing) return 0;
    pair->first = job->list.size / sizeof(int64_t);
    for (at++, end--; at < end;) {
        const char *from = at;
        int64_t number;
        while (at < end && is_digit(*at)) at++;
        if (!read_int(from, at, MOST_DIGITS, &number)) return 0;
        PUT(job, &job->list, int64_t, number);
        pair->count++;
        if (at == end) break;
        if (*at != ',') return 0;
        at++;
        if (at < end && *at == ' ') at++;
        else if (at + 1 < end && *at == '0' && is_digit(at[1])) return 0; /* 1,024 is no list */
        if (at == end) return 0;
    }
    return 1;
}

/* ['a1', 'b-2']: short ids, or hexadecimal ones, which have the shape of no key. */
static int read_ids(Job *job, const char *at, const char *end, Pair *pair) {
    if (end - at < 5 || *at != '[' || end[-1] != ']') return 0;
    pair->first = job->list.size / sizeof(int64_t);
    const char *base = pair->begin;
    for (at++, end--; at < end;) {
        int hex = 1;
        if (*at++ != '\'') return 0;
        const char *from = at;
        for (; at < end && (is_word(*at) || *at == '-'); at++) hex &= is_digit(*at) || (*at >= 'a' && *at <= 'f') || *at == '-';
        if (at == end || *at != '\'' || at == from || at - from > MOST_ID || (at - from > 8 && !hex)) return 0;
        PUT(job, &job->list, int64_t, ((int64_t)(from - base) << 32) | (int64_t)(at - base));
        pair->count++;
        if (++at == end) return 1;
        if (end - at < 3 || at[0] != ',' || at[1] != ' ') return 0;
        at += 2;
    }
    return 0;
}

static int read_value(Job *job, const Kind *kind, Pair *pair) {
    const Key *key = job->table->key + pair->key;
    const char *at = pair->begin, *end = pair->end;
    if (at >= end) return 0;
    pair->flags = 0, pair->count = -1, pair->decimals = -1;
    if ((key->target < 0 || (key->flags & KEEP)) && !is_kept(at, end, key->flags, kind->mode == LOOSE)) return 0;
    if (key->target < 0) return 1;
    switch (kind->columns[key->target].kind) {
    case INT: return read_int(at, end, MOST_DIGITS, &pair->number);
    case WIDE: return read_int(at, end, 18, &pair->number);
    case FLOAT: return read_float(at, end, &pair->real, &pair->decimals);
    case BOOL:
        pair->number = end - at == 4;
        return (end - at == 4 && memcmp(at, "True", 4) == 0) || (end - at == 5 && memcmp(at, "False", 5) == 0);
    case INTS:
        pair->count = 0;
        if (*at == '[' || *at == '(') return read_ints(job, at, end, pair);
        if (!read_int(at, end, MOST_DIGITS, &pair->number)) return 0;
        pair->first = job->list.size / sizeof(int64_t), pair->count = 1;
        PUT(job, &job->list, int64_t, pair->number);
        return 1;
    case IDS: pair->count = 0; return read_ids(job, at, end, pair);
    default: return 0;
    }
}

/* Note a pair: its key must be known, and neither it nor its column was there before. */
static Pair *add_pair(Job *job, int number, const char *key, int size) {
    if (job->pairs == MOST_PAIRS) return NULL;
    int at = find_key(job->table, number, key, size);
    if (at < 0) {
        asked(job, ASK_KEY, number, key, size);
        return NULL;
    }
    const Key *known = job->table->key + at;
    if (known->flags & REFUSED) return NULL;
    if (known->target >= 0) {
        if (job->column_pair[known->target] >= 0) return NULL;
        job->column_pair[known->target] = job->pairs;
    } else
        for (int i = 0; i < job->pairs; i++)
            if (job->pair[i].key == at) return NULL;
    job->pair[job->pairs].key = at;
    return job->pair + job->pairs++;
}

/* ", #token: 1200, token usage: 0.01": a separator ends a value only before a key that is known. */
static int strict_pairs(Job *job, int number, const char *at, const char *end) {
    const Kind *kind = job->table->kind + number;
    if (kind->iteration && at < end && (*at == '[' || (*at == ' ' && at + 1 < end && at[1] == '['))) {
        const char *from = at + (*at == ' ') + 1, *to = from;
        while (to < end && is_digit(*to)) to++;
        if (to == end || *to != ']') return 0;
        Pair *pair = add_pair(job, number, "[N]", 3);
        if (pair == NULL) return 0;
        pair->begin = from, pair->end = to;
        at = to + 1;
        if (!read_value(job, kind, pair)) return 0;
    }
    if (at < end && (*at == '.' || *at == ',' || *at == ':')) at++;
    if (at == end || *at != ' ') return 0;
    while (at < end && *at == ' ') at++;
    while (end > at && end[-1] == ' ') end--;
    int comma = end > at && end[-1] == kind->pair, last = 0;
    end -= comma;
    comma &= kind->pair == ',';
    while (at < end) {
        const char *sign = at;
        while (sign < end && *sign != kind->sign && *sign != kind->pair) sign++;
        if (sign == end || *sign != kind->sign || sign - at > 60) return 0;
        Pair *pair = add_pair(job, number, at, (int)(sign - at));
        if (pair == NULL) return 0;
        at = sign + 1;
        if (kind->sign == ':' && (at == end || *at++ != ' ')) return 0;
        if (at == end || *at == ' ') return 0;
        pair->begin = at;
        while (at < end && *at != kind->pair && *at != '[') at++;
        if (at < end && *at == '[') { /* [17, 15], 4.55 [4.40, 4.70] */
            at = memchr(at, ']', (size_t)(end - at));
            if (at == NULL) return 0;
            at++;
        }
        pair->end = at;
        if (!read_value(job, kind, pair)) return 0;
        last |= (job->table->key[pair->key].flags & LAST) != 0;
        if (at == end) break;
        if (*at++ != kind->pair) return 0;
        if (kind->pair != ' ' && (at == end || *at++ != ' ')) return 0;
        if (at == end || *at == ' ') return 0;
    }
    if (job->pairs == 0) return 0;
    const Pair *pair = job->pair + job->pairs - 1;
    int64_t whole;
    if (kind->has_last && !last && (comma || read_int(pair->begin, pair->end, 1 << 20, &whole))) return 0;
    return pair->decimals < 0 || pair->decimals >= kind->decimals;
}

/* "bs=1 budget=16" or "bs: 1, budget: 16": one sign and one separator in the whole line. */
static int loose_pairs(Job *job, int number, const char *at, const char *end, int colons) {
    const Kind *kind = job->table->kind + number;
    while (end > at && end[-1] == ' ') end--;
    char style = colons ? 0 : '=';
    while (at < end) {
        const char *from = at;
        if (!is_letter(*at) && *at != '_' && *at != '#') return 0;
        for (at++; at < end && (is_word(*at) || (*at != 0 && strchr("#./+-", *at) != NULL)); at++) {}
        int size = (int)(at - from);
        if (at == end || size > 60 || (*at != '=' && *at != ':') || (style && style != *at)) return 0;
        style = *at++;
        if (style == ':' && (at == end || *at++ != ' ')) return 0;
        if (at == end || *at == ' ' || *at == '=') return 0;
        Pair *pair = add_pair(job, number, from, size);
        if (pair == NULL) return 0;
        pair->begin = at;
        if (*at == '[' || *at == '(') {
            char closing = *at == '[' ? ']' : ')';
            at = memchr(at, closing, (size_t)(end - at));
            if (at == NULL) return 0;
            at++;
        } else
            while (at < end && *at != ' ' && *at != ',') at++;
        pair->end = at;
        if (!read_value(job, kind, pair)) return 0;
        if (at < end && *at == ',') at++;
        if (at < end && *at != ' ') return 0;
        while (at < end && *at == ' ') at++;
    }
    return job->pairs > 0;
}

/* What the pairs of a line must be to each other. */
static int fit_together(Job *job, const Kind *kind, int label) {
    int need = -1, length = -1, decimals = -1, there = 0, sure = 0;
    int64_t said = -1;
    for (int c = 0; c < kind->count; c++) {
        int flags = kind->columns[c].flags, at = job->column_pair[c];
        if (flags & NEED && need < 0) need = 0;
        if (at < 0) continue;
        const Pair *pair = job->pair + at;
        there++;
        if (flags & SURE) sure = 1;
        if (flags & NEED) need = 1;
        if (flags & LENGTH) said = pair->number;
        if (flags & MEAN && at < job->pairs - 1 && pair->decimals > decimals) decimals = pair->decimals;
        if (flags & SAME_LENGTH && length >= 0 && length != pair->count) return 0;
        if (flags & SAME_LENGTH) length = pair->count;
    }
    const Pair *last = job->pair + job->pairs - 1;
    int target = job->table->key[last->key].target;
    if (target >= 0 && kind->columns[target].flags & MEAN && last->decimals < decimals) return 0;
    if (said > MOST_SEQUENCES || (said >= 0 && length >= 0 && said != length)) return 0;
    return need != 0 && (!label || (there > 1 && sure));
}

static int days_of(int year, int month) {
    static const int days[] = {31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31};
    return month == 2 && (year % 4 == 0 && (year % 100 != 0 || year % 400 == 0)) ? 29 : days[month - 1];
}

static int two(const char *at) { return (at[0] - '0') * 10 + at[1] - '0'; }

static int read_stamp(Job *job, const char *at) {
    static const char form[] = "0000-00-00 00:00:00";
    if (job->stamp_known && memcmp(job->stamp, at, 19) == 0) return 1;
    for (int i = 0; i < 19; i++)
        if (form[i] == '0' ? !is_digit(at[i]) : at[i] != form[i]) return 0;
    int year = two(at) * 100 + two(at + 2), month = two(at + 5), day = two(at + 8), hour = two(at + 11), minute = two(at + 14), second = two(at + 17);
    if (year < 1) return 0;
    job->stamp_real = month >= 1 && month <= 12 && day >= 1 && day <= days_of(year, month) && hour < 24 && minute < 60 && second < 60;
    if (job->stamp_real) {
        /* Days since 1970, counted in years that begin in March. */
        int64_t y = year - (month <= 2), m = (month + 9) % 12;
        int64_t days = 365 * y + y / 4 - y / 100 + y / 400 + (m * 306 + 5) / 10 + day - 1 - 719468;
        job->stamp_us = (days * DAY + hour * 3600 + minute * 60 + second) * 1000000;
    }
    memcpy(job->stamp, at, 19);
    job->stamp_known = 1;
    return 1;
}

/* [2026-02-01 10:00:00.123 DP0 TP0]: the text between the brackets. */
static int read_head(Job *job, const char *at, const char *end, Head *head) {
    const Table *table = job->table;
    if (end - at < 19 || !read_stamp(job, at)) return 0;
    head->known = head->real = (unsigned char)job->stamp_real;
    head->naive = job->stamp_real ? job->stamp_us : 0;
    head->resolution = 1000000;
    head->ranks = -1;
    at += 19;
    int64_t part;
    if (end - at >= 4 && *at == '.' && read_int(at + 1, at + 4, 3, &part)) {
        head->resolution = 1000;
        if (head->known) head->naive += part * 1000;
        at += 4;
    }
    if (at == end) return 1;
    if (*at != ' ') return 0;
    for (int i = 0; i < table->ranks; i++)
        if (table->rank[i].size == end - at && memcmp(table->rank[i].text, at, (size_t)(end - at)) == 0) {
            head->ranks = i;
            return table->rank[i].target >= 0;
        }
    return asked(job, ASK_RANKS, -1, at, (int)(end - at));
}

/* A pattern, by backtracking; the groups' places stand in save. 1: it fits, 0: it does not, -1: given up. */
static int matches(Job *job, const Kind *kind, const char *text, const char *end, const char **save) {
    typedef struct { int32_t pc, slot; const char *at; } Back;
    const int32_t *program = kind->program;
    const char *at = text;
    int32_t pc = 0;
    int steps = 0;
    job->stack.size = 0;
    for (;;) {
        const int32_t *op = program + 3 * pc;
        int fits = 1;
        if (++steps > MOST_STEPS) return -1;
        switch (op[0]) {
        case CHAR: fits = at < end && (unsigned char)*at == op[1]; at += fits; pc++; break;
        case SET: fits = at < end && kind->sets[op[1]][(unsigned char)*at >> 3] >> ((unsigned char)*at & 7) & 1; at += fits; pc++; break;
        case ANY: fits = at < end; at += fits; pc++; break;
        case SPLIT: PUT(job, &job->stack, Back, ((Back){op[2], -1, at})); pc = op[1]; break;
        case JUMP: pc = op[1]; break;
        case SAVE: PUT(job, &job->stack, Back, ((Back){0, op[1], save[op[1]]})); save[op[1]] = at; pc++; break;
        case BEGIN: fits = at == text; pc++; break;
        case END: fits = at == end; pc++; break;
        case BORDER: fits = (at > text && is_word(at[-1])) != (at < end && is_word(*at)); pc++; break;
        default: return 1;
        }
        if (job->out_of_memory) return -1;
        while (!fits) {
            Back back;
            if (job->stack.size == 0) return 0;
            job->stack.size -= sizeof(Back);
            memcpy(&back, job->stack.at + job->stack.size, sizeof(Back));
            if (back.slot >= 0) save[back.slot] = back.at;
            else {
                pc = back.pc, at = back.at;
                break;
            }
        }
    }
}

static void put_row(Job *job, int number, int64_t row, const Head *head) {
    Made *made = job->made + number;
    PUT(job, &made->rows, int64_t, row);
    PUT(job, &made->naive, int64_t, head->naive);
    PUT(job, &made->known, unsigned char, head->known);
    PUT(job, &made->real, unsigned char, head->real);
    PUT(job, &made->resolution, int32_t, head->resolution);
    PUT(job, &made->ranks, int32_t, head->ranks);
    made->count++;
}

static void put_pairs(Job *job, int number, int64_t row, const Head *head) {
    const Kind *kind = job->table->kind + number;
    Made *made = job->made + number;
    int64_t at = made->count;
    int length = -1;
    for (int c = 0; c < kind->count; c++)
        if (kind->columns[c].flags & SAME_LENGTH && job->column_pair[c] >= 0) length = job->pair[job->column_pair[c]].count;
    for (int c = 0; c < kind->count; c++) {
        Out *out = made->columns + c;
        const Pair *pair = job->column_pair[c] < 0 ? NULL : job->pair + job->column_pair[c];
        int counted = pair == NULL && kind->columns[c].flags & LENGTH && length >= 0, there = pair != NULL || counted;
        put_bit(job, &out->valid, at, there);
        out->nulls += !there;
        switch (kind->columns[c].kind) {
        case INT: PUT(job, &out->data, int32_t, (int32_t)(pair ? pair->number : counted ? length : 0)); break;
        case WIDE: PUT(job, &out->data, int64_t, pair ? pair->number : counted ? length : 0); break;
        case FLOAT: PUT(job, &out->data, double, pair ? pair->real : 0); break;
        case BOOL: put_bit(job, &out->data, at, pair && pair->number); break;
        default:
            for (int i = 0; pair != NULL && i < pair->count; i++) {
                int64_t item;
                memcpy(&item, job->list.at + (pair->first + (size_t)i) * sizeof item, sizeof item);
                if (kind->columns[c].kind == INTS) PUT(job, &out->data, int32_t, (int32_t)item);
                else {
                    put_bytes(job, &out->data, pair->begin + (item >> 32), (size_t)((item & 0xffffffff) - (item >> 32)));
                    PUT(job, &out->ends, int32_t, (int32_t)out->data.size);
                }
            }
            PUT(job, &out->offsets, int32_t, (int32_t)(kind->columns[c].kind == INTS ? out->data.size / sizeof(int32_t) : out->ends.size / sizeof(int32_t) - 1));
        }
    }
    size_t before = made->extra_keys.size;
    for (int i = 0; i < job->pairs; i++) {
        const Pair *pair = job->pair + i;
        if (job->table->key[pair->key].target >= 0 && !(job->table->key[pair->key].flags & KEEP)) continue;
        PUT(job, &made->extra_keys, int32_t, pair->key);
        put_bytes(job, &made->extra_data, pair->begin, (size_t)(pair->end - pair->begin));
        PUT(job, &made->extra_ends, int32_t, (int32_t)made->extra_data.size);
    }
    put_bit(job, &made->extra_valid, at, made->extra_keys.size > before);
    made->extra_nulls += made->extra_keys.size == before;
    PUT(job, &made->extra_offsets, int32_t, (int32_t)(made->extra_keys.size / sizeof(int32_t)));
    put_row(job, number, row, head);
}

/* 1: the row is there; 0: the pattern does not fit; -1: left to the reference. */
static int put_pattern(Job *job, int number, int64_t row, const Head *head, const char *at, const char *end) {
    const Kind *kind = job->table->kind + number;
    Made *made = job->made + number;
    const char *save[2 * MOST_GROUPS] = {0};
    if (end - at > MOST_LINE) return -1;
    for (const char *c = at; c < end; c++)
        if ((unsigned char)*c < 32 || (unsigned char)*c > 126) return -1;
    int fits = matches(job, kind, at, end, save);
    if (fits != 1) return fits;
    int64_t numbers[MOST_COLUMNS] = {0};
    double reals[MOST_COLUMNS] = {0};
    int decimals;
    for (int c = 0; c < kind->count; c++) {
        const char *from = save[2 * c], *to = save[2 * c + 1];
        if (from == NULL || to == NULL || (from == to && kind->columns[c].kind != TEXT)) continue;
        int good = 1;
        switch (kind->columns[c].kind) {
        case INT: good = read_int(from, to, MOST_DIGITS, numbers + c); break;
        case WIDE: good = read_int(from, to, 18, numbers + c); break;
        case FLOAT: good = read_float(from, to, reals + c, &decimals); break;
        case TEXT: break;
        default: good = 0; /* the rest of a number that goes on */
        }
        if (!good) return -1;
    }
    for (int c = 0; c < kind->count; c++) {
        Out *out = made->columns + c;
        const char *from = save[2 * c], *to = save[2 * c + 1];
        int there = from != NULL && to != NULL && (from < to || kind->columns[c].kind == TEXT);
        put_bit(job, &out->valid, made->count, there);
        out->nulls += !there;
        switch (kind->columns[c].kind) {
        case INT: PUT(job, &out->data, int32_t, (int32_t)numbers[c]); break;
        case WIDE: PUT(job, &out->data, int64_t, numbers[c]); break;
        case FLOAT: PUT(job, &out->data, double, reals[c]); break;
        default:
            if (there) put_bytes(job, &out->data, from, (size_t)(to - from));
            PUT(job, &out->ends, int32_t, (int32_t)out->data.size);
        }
    }
    put_row(job, number, row, head);
    return 1;
}

static int is_marker(const Marker *marker, const char *at, const char *end) {
    if (end - at < marker->size) return 0;
    if (!marker->fold) return memcmp(at, marker->text, (size_t)marker->size) == 0;
    for (int i = 0; i < marker->size; i++)
        if (low(at[i]) != marker->text[i]) return 0;
    return 1;
}

static void leave(Job *job, int64_t row, int kind, const char *text, const char *at) {
    PUT(job, &job->left, int64_t, row);
    PUT(job, &job->left_kind, int32_t, kind);
    PUT(job, &job->left_begin, int32_t, (int32_t)(at - text));
}

/* Read a line; where its message begins is given, or found behind a head (begin is -1). */
static void read_line(Job *job, int64_t row, const char *text, const char *end, int begin) {
    const Table *table = job->table;
    const char *at = begin < 0 ? text : text + begin, *closing = NULL, *rest = text;
    Head head = {0, -1, -1, 0, 1};
    int good = 1, hit = 0, shared = 1;
    if (begin < 0 && at < end && *at == '[') {
        size_t size = (size_t)(end - at) < HEAD_BYTES ? (size_t)(end - at) : HEAD_BYTES;
        closing = memchr(at, ']', size);
        if (closing != NULL && closing + 1 < end && closing[1] == ' ') at = closing + 2;
    }
    for (int m = at < end ? table->first[(unsigned char)*at] : -1; m >= 0; m = table->marker[m].next) {
        const Marker *marker = table->marker + m;
        if (!is_marker(marker, at, end)) continue;
        if (!hit && begin < 0 && at > text) good = read_head(job, text + 1, closing, &head);
        hit = 1;
        const Kind *kind = table->kind + marker->kind;
        if (!good || kind->mode == LEFT) {
            leave(job, row, good ? marker->kind : -1, text, at);
            return;
        }
        if (kind->mode == PATTERN) {
            /* A head further on would go first. */
            int put = at == text && memchr(at, '[', (size_t)(end - at)) != NULL ? -1 : put_pattern(job, marker->kind, row, &head, at, end);
            if (put < 0) leave(job, row, marker->kind, text, at);
            if (put != 0) return;
            shared &= kind->shared;
            rest = at + marker->size > rest ? at + marker->size : rest;
            continue;
        }
        const char *pairs = at + marker->size;
        int read = 1;
        job->pairs = 0;
        job->list.size = 0;
        memset(job->column_pair, -1, sizeof job->column_pair);
        if (kind->mode == LOOSE && !marker->label) {
            read = end - pairs > 2 && *pairs == ':' && pairs[1] == ' ';
            for (pairs += 2; read && pairs < end && *pairs == ' '; pairs++) {}
        }
        if (kind->mode == STRICT) read = strict_pairs(job, marker->kind, pairs, end);
        else read = read && loose_pairs(job, marker->kind, pairs, end, !marker->label || (marker->size > 1 && pairs[-2] == ':'));
        if (read && fit_together(job, kind, marker->label)) put_pairs(job, marker->kind, row, &head);
        else leave(job, row, marker->label ? -1 : marker->kind, text, at);
        return;
    }
    unsigned state = 0, seen = 0, odd = 0;
    if (begin < 0 && (!hit || shared)) {
        for (const char *c = rest; c < end && !(seen & 1); c++) {
            unsigned char byte = (unsigned char)*c;
            odd |= (byte < 32 && byte != 9) | (byte == 0x7f) | (byte == 0xc2) | (byte == 0xef);
            state = table->next[state * (unsigned)table->classes + table->class_of[byte]];
            seen |= table->found[state];
        }
        if (!(seen & 1) && !(odd && seen)) return;
    }
    leave(job, row, -1, text, text);
}

/* ---- from and to Python ---- */

static void drop(Bytes *bytes) { free(bytes->at); }

static PyObject *taken(Bytes *bytes) { return PyBytes_FromStringAndSize(bytes->at ? bytes->at : "", (Py_ssize_t)bytes->size); }

static void free_table(Table *table) {
    for (int i = 0; i < table->kinds; i++) free(table->kind[i].program), free(table->kind[i].sets), free(table->kind[i].columns);
    for (int i = 0; i < table->markers; i++) free(table->marker[i].text);
    for (int i = 0; i < table->keys; i++) free(table->key[i].text);
    for (int i = 0; i < table->ranks; i++) free(table->rank[i].text);
    free(table->kind), free(table->marker), free(table->key), free(table->slot), free(table->rank), free(table->next), free(table->found), free(table);
}

static const char NAME[] = "ddtree_metrics.table";

static void end_table(PyObject *capsule) { free_table(PyCapsule_GetPointer(capsule, NAME)); }

static char *copied(const char *text, Py_ssize_t size) {
    char *made = malloc((size_t)size + 1);
    if (made != NULL) memcpy(made, text, (size_t)size), made[size] = 0;
    return made;
}

static void put_slot(Table *table, int number) {
    uint32_t at = table->key[number].hash & (uint32_t)(table->room - 1);
    while (table->slot[at] >= 0) at = (at + 1) & (uint32_t)(table->room - 1);
    table->slot[at] = number;
}

/* make(classes, next, found, count of classes): the automaton; kinds and markers are added to it. */
static PyObject *make_table(PyObject *self, PyObject *args) {
    const char *classes, *next, *found;
    Py_ssize_t class_size, next_size, found_size;
    int count;
    (void)self;
    if (!PyArg_ParseTuple(args, "y#y#y#i", &classes, &class_size, &next, &next_size, &found, &found_size, &count)) return NULL;
    if (class_size != 256 || next_size != found_size * count * 2) return PyErr_Format(PyExc_ValueError, "the automaton has the wrong size");
    Table *table = calloc(1, sizeof(Table));
    if (table == NULL) return PyErr_NoMemory();
    table->room = 1024, table->classes = count;
    table->slot = malloc((size_t)table->room * sizeof(int));
    table->next = (uint16_t *)copied(next, next_size);
    table->found = (unsigned char *)copied(found, found_size);
    if (!table->slot || !table->next || !table->found) {
        free_table(table);
        return PyErr_NoMemory();
    }
    memset(table->slot, -1, (size_t)table->room * sizeof(int));
    memset(table->first, -1, sizeof table->first);
    memset(table->last, -1, sizeof table->last);
    memcpy(table->class_of, classes, 256);
    PyObject *made = PyCapsule_New(table, NAME, end_table);
    if (made == NULL) free_table(table);
    return made;
}

/* add_kind(table, mode, decimals, iteration, has_last, shared, pair, sign, columns as pairs of int32, program, sets) */
static PyObject *add_kind(PyObject *self, PyObject *args) {
    PyObject *capsule;
    int mode, decimals, iteration, has_last, shared, pair, sign;
    const char *columns, *program, *sets;
    Py_ssize_t column_size, program_size, set_size;
    (void)self;
    if (!PyArg_ParseTuple(args, "Oiiiiiiiy#y#y#", &capsule, &mode, &decimals, &iteration, &has_last, &shared, &pair, &sign, &columns, &column_size, &program, &program_size, &sets, &set_size)) return NULL;
    Table *table = PyCapsule_GetPointer(capsule, NAME);
    if (table == NULL) return NULL;
    if (column_size / 8 > (mode == PATTERN ? MOST_GROUPS : MOST_COLUMNS)) mode = LEFT, column_size = 0;
    Kind *all = realloc(table->kind, (size_t)(table->kinds + 1) * sizeof(Kind));
    if (all == NULL) return PyErr_NoMemory();
    table->kind = all;
    Kind *kind = all + table->kinds++;
    memset(kind, 0, sizeof(Kind));
    kind->mode = mode, kind->decimals = decimals, kind->iteration = iteration, kind->has_last = has_last, kind->shared = shared, kind->pair = (char)pair, kind->sign = (char)sign;
    kind->count = (int)(column_size / 8);
    kind->columns = (Column *)copied(columns, column_size);
    kind->program = (int32_t *)copied(program, program_size);
    kind->sets = (unsigned char(*)[32])copied(sets, set_size);
    if (!kind->columns || !kind->program || !kind->sets) return PyErr_NoMemory();
    return PyLong_FromLong(table->kinds - 1);
}

static PyObject *add_marker(PyObject *self, PyObject *args) {
    PyObject *capsule;
    int kind, fold, label;
    const char *text;
    Py_ssize_t size;
    (void)self;
    if (!PyArg_ParseTuple(args, "Oiy#ii", &capsule, &kind, &text, &size, &fold, &label)) return NULL;
    Table *table = PyCapsule_GetPointer(capsule, NAME);
    if (table == NULL) return NULL;
    Marker *all = realloc(table->marker, (size_t)(table->markers + 2) * sizeof(Marker));
    if (all == NULL) return PyErr_NoMemory();
    table->marker = all;
    if (size == 0) Py_RETURN_NONE;
    unsigned char first = (unsigned char)text[0];
    /* Once for each case of its first letter. */
    for (int twice = 0; twice <= (fold && is_letter((char)first)); twice++) {
        unsigned char byte = twice ? (unsigned char)(first - 32) : first;
        Marker made = {kind, fold, label, (int)size, -1, copied(text, size)};
        if (made.text == NULL) return PyErr_NoMemory();
        table->marker[table->markers] = made;
        if (table->last[byte] >= 0) table->marker[table->last[byte]].next = table->markers;
        else table->first[byte] = table->markers;
        table->last[byte] = table->markers++;
    }
    Py_RETURN_NONE;
}

/* add_key(table, kind, text, target, flags): its number */
static PyObject *add_key(PyObject *self, PyObject *args) {
    PyObject *capsule;
    int kind, target, flags;
    const char *text;
    Py_ssize_t size;
    (void)self;
    if (!PyArg_ParseTuple(args, "Oiy#ii", &capsule, &kind, &text, &size, &target, &flags)) return NULL;
    Table *table = PyCapsule_GetPointer(capsule, NAME);
    if (table == NULL) return NULL;
    if (2 * table->keys >= table->room) {
        int *slot = realloc(table->slot, 2 * (size_t)table->room * sizeof(int));
        if (slot == NULL) return PyErr_NoMemory();
        table->slot = slot, table->room *= 2;
        memset(slot, -1, (size_t)table->room * sizeof(int));
        for (int i = 0; i < table->keys; i++) put_slot(table, i);
    }
    Key *all = realloc(table->key, (size_t)(table->keys + 1) * sizeof(Key));
    if (all == NULL) return PyErr_NoMemory();
    table->key = all;
    Key made = {hash_of(kind, text, (int)size), kind, target, flags, (int)size, copied(text, size)};
    if (made.text == NULL) return PyErr_NoMemory();
    all[table->keys] = made;
    put_slot(table, table->keys);
    return PyLong_FromLong(table->keys++);
}

static PyObject *add_ranks(PyObject *self, PyObject *args) {
    PyObject *capsule;
    int good;
    const char *text;
    Py_ssize_t size;
    (void)self;
    if (!PyArg_ParseTuple(args, "Oy#i", &capsule, &text, &size, &good)) return NULL;
    Table *table = PyCapsule_GetPointer(capsule, NAME);
    if (table == NULL) return NULL;
    Key *all = realloc(table->rank, (size_t)(table->ranks + 1) * sizeof(Key));
    if (all == NULL) return PyErr_NoMemory();
    table->rank = all;
    Key made = {0, 0, good ? 0 : -1, 0, (int)size, copied(text, size)};
    if (made.text == NULL) return PyErr_NoMemory();
    all[table->ranks] = made;
    return PyLong_FromLong(table->ranks++);
}

static void free_job(Job *job) {
    for (int k = 0; job->made != NULL && k < job->table->kinds; k++) {
        Made *made = job->made + k;
        drop(&made->rows), drop(&made->naive), drop(&made->known), drop(&made->real), drop(&made->resolution), drop(&made->ranks);
        drop(&made->extra_valid), drop(&made->extra_offsets), drop(&made->extra_keys), drop(&made->extra_ends), drop(&made->extra_data);
        for (int c = 0; c < MOST_COLUMNS; c++) drop(&made->columns[c].valid), drop(&made->columns[c].data), drop(&made->columns[c].offsets), drop(&made->columns[c].ends);
    }
    drop(&job->left), drop(&job->left_kind), drop(&job->left_begin), drop(&job->list), drop(&job->stack);
    free(job->made), free(job);
}

static PyObject *made_of(const Kind *kind, int number, Made *made) {
    PyObject *columns = PyTuple_New(kind->count);
    for (int c = 0; columns != NULL && c < kind->count; c++) {
        Out *out = made->columns + c;
        PyObject *one = Py_BuildValue("(LNNNN)", (long long)out->nulls, taken(&out->valid), taken(&out->offsets), taken(&out->ends), taken(&out->data));
        if (one == NULL || PyTuple_SetItem(columns, c, one) < 0) Py_CLEAR(columns);
    }
    if (columns == NULL) return NULL;
    PyObject *extra = Py_BuildValue("(LNNNNN)", (long long)made->extra_nulls, taken(&made->extra_valid), taken(&made->extra_offsets),
                                    taken(&made->extra_keys), taken(&made->extra_ends), taken(&made->extra_data));
    return Py_BuildValue("(iLNNNNNNNN)", number, (long long)made->count, taken(&made->rows), taken(&made->naive), taken(&made->known),
                         taken(&made->real), taken(&made->resolution), taken(&made->ranks), columns, extra);
}

/* read(table, address of offsets, address of data, count, rows or None, begins or None): kinds, left, their kinds, their begins, asks */
static PyObject *read_lines(PyObject *self, PyObject *args) {
    PyObject *capsule, *offsets_at, *data_at;
    Py_ssize_t count, row_size = 0, begin_size = 0;
    const char *row_bytes = NULL, *begin_bytes = NULL;
    (void)self;
    if (!PyArg_ParseTuple(args, "OOOnz#z#", &capsule, &offsets_at, &data_at, &count, &row_bytes, &row_size, &begin_bytes, &begin_size)) return NULL;
    Table *table = PyCapsule_GetPointer(capsule, NAME);
    const int32_t *offsets = PyLong_AsVoidPtr(offsets_at);
    const char *data = PyLong_AsVoidPtr(data_at);
    if (table == NULL || PyErr_Occurred()) return NULL;
    Job *job = calloc(1, sizeof(Job));
    if (job == NULL) return PyErr_NoMemory();
    job->table = table;
    job->made = calloc((size_t)table->kinds + 1, sizeof(Made));
    if (job->made == NULL) {
        free_job(job);
        return PyErr_NoMemory();
    }
    Py_BEGIN_ALLOW_THREADS
    for (int k = 0; k < table->kinds; k++) {
        PUT(job, &job->made[k].extra_offsets, int32_t, 0);
        PUT(job, &job->made[k].extra_ends, int32_t, 0);
        for (int c = 0; c < table->kind[k].count; c++) {
            PUT(job, &job->made[k].columns[c].offsets, int32_t, 0);
            PUT(job, &job->made[k].columns[c].ends, int32_t, 0);
        }
    }
    int64_t many = row_bytes == NULL ? count : row_size / (Py_ssize_t)sizeof(int64_t);
    for (int64_t i = 0; i < many && !job->out_of_memory; i++) {
        int64_t row = i;
        if (row_bytes != NULL) memcpy(&row, row_bytes + i * (int64_t)sizeof row, sizeof row);
        int32_t begin = -1;
        if (begin_bytes != NULL) memcpy(&begin, begin_bytes + i * (int64_t)sizeof begin, sizeof begin);
        read_line(job, row, data + offsets[row], data + offsets[row + 1], begin);
    }
    Py_END_ALLOW_THREADS
    PyObject *kinds = job->out_of_memory ? PyErr_NoMemory() : PyList_New(0), *asks = kinds ? PyList_New(0) : NULL, *result = NULL;
    int good = kinds != NULL && asks != NULL;
    for (int k = 0; good && k < table->kinds; k++)
        if (job->made[k].count) {
            PyObject *one = made_of(table->kind + k, k, job->made + k);
            good = one != NULL && PyList_Append(kinds, one) == 0;
            Py_XDECREF(one);
        }
    for (int i = 0; good && i < job->asks; i++) {
        PyObject *one = Py_BuildValue("(iiy#)", job->ask[i].what, job->ask[i].kind, job->ask[i].text, (Py_ssize_t)job->ask[i].size);
        good = one != NULL && PyList_Append(asks, one) == 0;
        Py_XDECREF(one);
    }
    if (good) result = Py_BuildValue("(ONNNO)", kinds, taken(&job->left), taken(&job->left_kind), taken(&job->left_begin), asks);
    Py_XDECREF(kinds);
    Py_XDECREF(asks);
    free_job(job);
    return result;
}

static PyMethodDef METHODS[] = {
    {"make_table", make_table, METH_VARARGS, "Make the tables, with the automaton that finds any marker."},
    {"add_kind", add_kind, METH_VARARGS, "Add a kind of line; return its number."},
    {"add_marker", add_marker, METH_VARARGS, "Add a text with which a kind begins."},
    {"add_key", add_key, METH_VARARGS, "Add a key of a kind; return its number."},
    {"add_ranks", add_ranks, METH_VARARGS, "Add words that may stand behind a stamp; return their number."},
    {"read", read_lines, METH_VARARGS, "Read lines of an Arrow string array, given by its buffers."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef MODULE = {PyModuleDef_HEAD_INIT, "tokenizer", "The compiled reader of usual lines.", -1, METHODS, NULL, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit_tokenizer(void) { return PyModule_Create(&MODULE); }
