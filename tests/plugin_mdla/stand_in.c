/* A stand-in for the MDLA library: the interface as publicly described, written for these tests, with none of its code.
 * It checks arguments, keeps books on contexts and buffers, and can be told to misbehave. It computes one Q8.8 operator:
 * what the model's bytes name first among Relu and Add; x otherwise. */
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define MAGIC 0x4d444c41u
#define MOST 8
#define QUEUE 2

typedef struct {
    uint32_t magic;
    int operator;              /* 'r', '+' or 'x' */
    unsigned n_in;
    unsigned dims[MOST];
    uint64_t sizes[MOST][4];
    unsigned out_dims[1];
    uint64_t *out_shape[1];
    int queued;
    float *waiting[QUEUE];
    uint64_t elements[QUEUE];
    void *user[QUEUE];
} context;

static int live, freed, flags;
static char fault[64] = "", last_flag[128] = "", all_flags[512] = "", version[32] = "2020.2";

/* --- what tests ask and tell ------------------------------------------------------------------------------------- */
void stand_in_fault(const char *what) { snprintf(fault, sizeof fault, "%s", what); }
void stand_in_version(const char *what) { snprintf(version, sizeof version, "%s", what); }
int stand_in_live(void) { return live; }
int stand_in_freed(void) { return freed; }
const char *stand_in_flags(void) { return all_flags; }
void stand_in_reset(void) { live = freed = flags = 0; fault[0] = all_flags[0] = 0; strcpy(version, "2020.2"); }

static int told(const char *what) {
    const char *set = getenv("STAND_IN_FAULT");
    return !strcmp(fault, what) || (set && !strcmp(set, what));
}
static context *checked(void *ctx) {
    context *c = ctx;
    if (!c || c->magic != MAGIC) { fprintf(stderr, "stand-in: no live context\n"); abort(); }
    return c;
}
static uint64_t count(const context *c, unsigned input) {
    uint64_t n = 1;
    for (unsigned d = 0; d < c->dims[input]; d++) n *= c->sizes[input][d];
    return n;
}

/* --- the interface ----------------------------------------------------------------------------------------------- */
void *ie_create(void) {
    if (told("create")) return NULL;
    context *c = calloc(1, sizeof *c);
    c->magic = MAGIC;
    live++;
    return c;
}

void ie_free(void *ctx) {
    context *c = checked(ctx);
    for (int i = 0; i < c->queued; i++) free(c->waiting[i]);
    free(c->out_shape[0]);
    c->magic = 0;
    free(c);
    live--;
    freed++;
}

int ie_setflag(void *ctx, const char *name, const char *value) {
    checked(ctx);
    if (!name || !value || told("setflag") || !strcmp(name, "nonsense")) return -1;
    snprintf(last_flag, sizeof last_flag, "%s=%s ", name, value);
    strncat(all_flags, last_flag, sizeof all_flags - strlen(all_flags) - 1);
    return 0;
}

int ie_getinfo(void *ctx, const char *name, void *value, size_t size) {
    checked(ctx);
    if (told("getinfo")) return -1;
    if (!strcmp(name, "version")) { snprintf(value, size, "%s", version); return 1; }
    if (!strcmp(name, "isboard")) { *(_Bool *)value = 1; return 2; }
    if (!strcmp(name, "nclusters")) { *(int *)value = 4; return 3; }
    if (!strcmp(name, "memory")) { *(int64_t *)value = 1LL << 33; return 4; }
    if (!strcmp(name, "clock")) { *(float *)value = 250.0f; return 5; }
    return 0;
}

static int parse(context *c, const char *text) {
    c->n_in = 0;
    while (*text) {
        if (c->n_in == MOST) return -1;
        unsigned d = 0;
        for (;;) {
            char *end;
            if (d == 4) return -1;
            c->sizes[c->n_in][d++] = strtoull(text, &end, 10);
            if (end == text) return -1;
            text = end;
            if (*text != 'x') break;
            text++;
        }
        c->dims[c->n_in++] = d;
        if (*text == ';') text++;
        else if (*text) return -1;
    }
    return c->n_in ? 0 : -1;
}

static void *shapes_out(context *c, unsigned *n, unsigned **ndims, uint64_t ***shapes) {
    if (!n || !ndims || !shapes) return NULL;
    free(c->out_shape[0]);
    c->out_dims[0] = c->dims[0];
    c->out_shape[0] = malloc(sizeof(uint64_t) * 4);
    memcpy(c->out_shape[0], c->sizes[0], sizeof c->sizes[0]);
    if (told("shapes")) c->out_shape[0][0]++;
    *n = 1;
    *ndims = c->out_dims;
    *shapes = c->out_shape;
    return c;
}

static int named(const char *path, const char *word) {
    FILE *file = fopen(path, "rb");
    if (!file) return -1;
    static char buffer[1 << 16];
    size_t size = fread(buffer, 1, sizeof buffer, file);
    fclose(file);
    for (size_t i = 0; i + strlen(word) <= size; i++)
        if (!memcmp(buffer + i, word, strlen(word))) return 1;
    return 0;
}

void *ie_compile(void *ctx, const char *model, const char *binary, const char *inshapes, unsigned *n, unsigned **ndims,
                 uint64_t ***shapes, void *ctx2) {
    context *c = checked(ctx);
    if (ctx2 || told("compile") || !model || !binary || !inshapes || parse(c, inshapes)) return NULL;
    int relu = named(model, "Relu"), add = named(model, "Add");
    if (relu < 0) return NULL;
    FILE *file = fopen(binary, "w");
    if (!file) return NULL;
    fprintf(file, "MDLA %c %s", relu ? 'r' : add ? '+' : 'x', inshapes);
    fclose(file);
    return shapes_out(c, n, ndims, shapes);
}

void *ie_compile_vfp(void *ctx, const char *model, const char *binary, const char *inshapes, unsigned *n, unsigned **ndims,
                     uint64_t ***shapes, const float *const *inputs, const uint64_t *elements, unsigned n_in, void *ctx2) {
    context *c = checked(ctx);
    if (told("compile_vfp") || parse(c, inshapes) || n_in != c->n_in) return NULL;
    for (unsigned i = 0; i < n_in; i++)
        if (!inputs[i] || elements[i] != count(c, i)) return NULL;
    strncat(all_flags, "calibrated ", sizeof all_flags - strlen(all_flags) - 1);
    return ie_compile(ctx, model, binary, inshapes, n, ndims, shapes, ctx2);
}

void *ie_init(void *ctx, const char *binary, unsigned *n, unsigned **ndims, uint64_t ***shapes, void *ctx2) {
    context *c = checked(ctx);
    char text[256] = "", operator;
    FILE *file = fopen(binary, "r");
    if (!file) return NULL;
    int found = fscanf(file, "MDLA %c %255s", &operator, text);
    fclose(file);
    if (ctx2 || told("init") || found != 2 || parse(c, text)) return NULL;
    c->operator = operator;
    return shapes_out(c, n, ndims, shapes);
}

static float fixed(float value) {
    double q = floor((double)value * 256.0 + 0.5);
    return (float)((q > 32767 ? 32767 : q < -32768 ? -32768 : q) / 256.0);
}

static int compute(context *c, const float *const *in, const uint64_t *in_elements, unsigned n_in, float *out) {
    if (n_in != c->n_in || (c->operator == '+' && n_in != 2)) return -1;
    for (unsigned i = 0; i < n_in; i++)
        if (!in[i] || in_elements[i] != count(c, i)) return -1;
    for (uint64_t i = 0; i < count(c, 0); i++) {
        float value = fixed(in[0][i]);
        if (c->operator == '+') value = fixed(value + fixed(in[1][i]));
        out[i] = c->operator == 'r' && value < 0 ? 0 : value;
    }
    return 0;
}

int ie_run(void *ctx, const float *const *in, const uint64_t *in_elements, unsigned n_in, float **out,
           uint64_t *out_elements, unsigned n_out) {
    context *c = checked(ctx);
    if (told("run")) return -1;
    if (told("strange")) return -7;
    if (told("hang")) sleep(30);
    if (told("nap")) sleep(1);
    if (n_out != 1 || !out[0] || out_elements[0] != count(c, 0)) return -1;
    if (compute(c, in, in_elements, n_in, out[0])) return -1;
    if (told("short")) out_elements[0]--;
    return 0;
}

int ie_run_sw(void *ctx, const float *const *in, const uint64_t *in_elements, unsigned n_in, float **out,
              uint64_t *out_elements, unsigned n_out) {
    return told("run_sw") ? -1 : ie_run(ctx, in, in_elements, n_in, out, out_elements, n_out);
}

int ie_run_thnets(void *ctx, const float *const *in, const uint64_t *in_elements, unsigned n_in, float **out,
                  uint64_t *out_elements, unsigned n_out) {
    return told("run_thnets") ? -1 : ie_run(ctx, in, in_elements, n_in, out, out_elements, n_out);
}

int ie_putinput(void *ctx, const float *const *in, const uint64_t *in_elements, unsigned n_in, void *user) {
    context *c = checked(ctx);
    if (told("putinput")) return -1;
    if (c->queued == QUEUE) return -99;
    float *result = malloc(sizeof(float) * count(c, 0));
    if (compute(c, in, in_elements, n_in, result)) { free(result); return -1; }
    c->waiting[c->queued] = result;
    c->elements[c->queued] = count(c, 0);
    c->user[c->queued++] = user;
    return 0;
}

int ie_getresult(void *ctx, float **out, uint64_t *out_elements, unsigned n_out, void **user) {
    context *c = checked(ctx);
    static int calls;
    if (told("getresult")) return -1;
    if (!c->queued || told("never") || ++calls % 2) return -99;
    if (n_out != 1 || out_elements[0] != c->elements[0]) return -1;
    memcpy(out[0], c->waiting[0], sizeof(float) * c->elements[0]);
    *user = c->user[0];
    free(c->waiting[0]);
    c->queued--;
    memmove(c->waiting, c->waiting + 1, sizeof c->waiting[0] * c->queued);
    memmove(c->elements, c->elements + 1, sizeof c->elements[0] * c->queued);
    memmove(c->user, c->user + 1, sizeof c->user[0] * c->queued);
    return 0;
}
