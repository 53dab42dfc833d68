# Cairn's one build file. Targets: all check crash-matrix soak races benches fuzz cov lint layers format docs man
# install clean.
# Variants: SAN=address,undefined | SAN=thread | COV=1 | FUZZ=1 | WERROR=1, each in its own build folder.
# `make faults` builds build/cairn-faults, which reads the WEIGHTS_TEST_* variables.

# ccache, where it is installed, makes a second variant or build folder cheap.
ifeq ($(origin CC),default)
CC := $(if $(shell command -v ccache),ccache) gcc
endif
PKGS := libmicrohttpd jansson sqlite3 libcrypto libpcre2-8 libutf8proc libseccomp libcurl libzstd
comma := ,
PKG_CFLAGS := $(shell pkg-config --cflags $(PKGS))
VARIANT := $(if $(SAN),-$(subst $(comma),-,$(SAN)))$(if $(COV),-cov)$(if $(FUZZ),-fuzz)$(if $(FAULTS),-faults)
B ?= build$(if $(VARIANT),/variant$(VARIANT))

WARN := -Wall -Wextra -Wshadow -Wconversion -Wstrict-prototypes -Wmissing-prototypes -Wundef -Wvla \
        -Wformat=2 -Wwrite-strings $(if $(WERROR),-Werror)
HARDEN := $(if $(SAN)$(FUZZ),,-D_FORTIFY_SOURCE=2) -fstack-protector-strong -fvisibility=hidden -fPIE
OPT := $(if $(COV),-O0,-O2)
COV_COUNTS := -fprofile-update=atomic # counts of several threads stay right
SANFLAGS := $(if $(SAN),-fsanitize=$(SAN) -fno-omit-frame-pointer -fno-sanitize-recover=undefined) \
            $(if $(COV),--coverage $(COV_COUNTS)) $(if $(FUZZ),-fsanitize=fuzzer-no-link$(comma)address$(comma)undefined)
CFLAGS += -std=gnu11 -g $(OPT) -ffp-contract=off $(WARN) $(HARDEN) $(SANFLAGS) -pthread -MMD -MP \
          -D_GNU_SOURCE -Isrc -Ibuild/gen $(if $(FAULTS),-DCAIRN_FAULTS) $(PKG_CFLAGS)
LDFLAGS += -pie -Wl,-z,relro,-z,now $(SANFLAGS) -pthread
LDLIBS := $(shell pkg-config --libs $(PKGS)) -lm

# The rooms, lowest level first. A folder includes only folders left of it ("make layers").
ROOMS := base kernels tensor db http text model store generate train engine service api cli daemon
LIBS := $(foreach r,$(ROOMS),$(B)/lib$(r).a)
src_of = $(wildcard src/$(1)/*.c src/$(1)/*/*.c)
obj_of = $(patsubst src/%.c,$(B)/obj/%.o,$(call src_of,$(1)))
# Archives a room may link with, itself first: static archives resolve left to right.
reverse = $(if $(1),$(call reverse,$(wordlist 2,99,$(1))) $(firstword $(1)))
upto = $(if $(filter $(1),$(firstword $(2))),$(1),$(firstword $(2)) $(call upto,$(1),$(wordlist 2,99,$(2))))
libs_for = $(foreach r,$(call reverse,$(call upto,$(1),$(ROOMS))),$(B)/lib$(r).a)

all: $(B)/cairn

$(B)/cairn: $(B)/obj/main.o $(call reverse,$(LIBS))
	$(CC) $(LDFLAGS) -o $@ $(B)/obj/main.o -Wl,--start-group $(LIBS) -Wl,--end-group $(LDLIBS)

faults:
	$(MAKE) FAULTS=1 B=$(B)/variant-faults $(B)/variant-faults/cairn
	cp $(B)/variant-faults/cairn $(B)/cairn-faults

define room_rule
$(B)/lib$(1).a: $(call obj_of,$(1))
	@rm -f $$@
	ar rcs $$@ $$^
endef
$(foreach r,$(ROOMS),$(eval $(call room_rule,$(r))))

# A kernel's suffix names the instructions it may use; dispatch.c asks the CPU before it calls one.
$(B)/obj/kernels/%_avx2.o: KFLAGS := -mavx2 -mfma -mf16c
$(B)/obj/kernels/%_avx512.o: KFLAGS := -mavx512f -mavx512bw -mavx512dq -mavx512vl -mfma -mf16c
$(B)/obj/kernels/%_bf16.o: KFLAGS := -mavx512f -mavx512bw -mavx512dq -mavx512vl -mavx512bf16 -mfma
$(B)/obj/kernels/%.o: OPT := -O3
$(B)/obj/kernels/%.o: COV_COUNTS := # the inner loops: no time for it
$(B)/obj/train/adam.o: OPT := $(if $(COV),-O0,-O3) -fno-math-errno

$(B)/obj/%.o: src/%.c
	@mkdir -p $(@D)
	$(CC) $(CFLAGS) $(KFLAGS) -c -o $@ $<

# ---- generated: the manifest schema, embedded in the binary ----
build/gen/manifest_schema.inc: docs/schemas/checkpoint-manifest-v1.json
	@mkdir -p $(@D)
	od -An -v -tx1 $< | sed 's/ \([0-9a-f][0-9a-f]\)/0x\1,/g' > $@
$(B)/obj/store/schema.o: build/gen/manifest_schema.inc
build/gen/openapi_parts.inc: docs/schemas/openapi-parts.json
	@mkdir -p $(@D)
	od -An -v -tx1 $< | sed 's/ \([0-9a-f][0-9a-f]\)/0x\1,/g' > $@
$(B)/obj/api/openapi.o: build/gen/openapi_parts.inc
build/gen/chat_worker.inc: src/text/chat_worker.py
	@mkdir -p $(@D)
	od -An -v -tx1 $< | sed 's/ \([0-9a-f][0-9a-f]\)/0x\1,/g' > $@
$(B)/obj/text/chat_worker.o: build/gen/chat_worker.inc

# ---- tests: tests/unit/<room>/test_<module>.c links its room and the rooms below ----
TESTS := $(patsubst tests/unit/%.c,$(B)/tests/%,$(wildcard tests/unit/*/test_*.c))
tests: $(TESTS)

.SECONDEXPANSION:
$(B)/tests/%: tests/unit/%.c $$(call libs_for,$$(firstword $$(subst /, ,$$*)))
	@mkdir -p $(@D)
	$(CC) $(CFLAGS) -Itests/unit $(LDFLAGS) -o $@ $< -Wl,--start-group $(filter %.a,$^) -Wl,--end-group \
	    -lcmocka $(LDLIBS)

# These let every allocation fail once.
NO_MEMORY := $(foreach r,base tensor store train,$(B)/tests/$(r)/test_no_memory)
$(NO_MEMORY): LDFLAGS += \
    $(foreach f,malloc calloc realloc reallocarray strdup strndup,-Wl,--wrap=$(f))

# Every test program, at most TEST_SECONDS each; prints one line a program and the cmocka output of failures.
TEST_SECONDS ?= 600
check: $(TESTS)
	@sh scripts/run_unit.sh $(TEST_SECONDS) $(TESTS)

# Every system call of saves and loads is killed, failed and cut from the disk once; ./check.sh takes a sample.
crash-matrix: all $(B)/tests/store/test_bit_flips
	CRASH_MATRIX=full $(B)/tests/store/test_bit_flips
	CRASH_MATRIX=full CAIRN=$(abspath $(B)/cairn) /usr/bin/python3 -m pytest -q -p no:cacheprovider tests/crash

# An hour of mixed use: memory, descriptors and threads must stay flat. SOAK_SECONDS=300 for less.
SOAK_SECONDS ?= 3600
soak: all
	CAIRN=$(abspath $(B)/cairn) /usr/bin/python3 tests/soak/soak.py --seconds $(SOAK_SECONDS)

# A sample of the API tests, the server under ThreadSanitizer. (Unit tests: make SAN=thread check.)
RACES ?= $(foreach t,openai_chat weaver_training weaver_sampling weights_attach weights_load \
    weights_running batches,tests/api/test_$(t).py)
races:
	$(MAKE) SAN=thread all
	sh scripts/races.sh $(abspath build/variant-thread/cairn) $(RACES)

# ---- benches: bench/bench_*.c link everything ----
BENCHES := $(patsubst bench/%.c,$(B)/bench/%,$(wildcard bench/bench_*.c))
benches: $(BENCHES)
$(B)/bench/%: bench/%.c $(LIBS)
	@mkdir -p $(@D)
	$(CC) $(CFLAGS) $(LDFLAGS) -o $@ $< -Wl,--start-group $(LIBS) -Wl,--end-group $(LDLIBS)

# ---- fuzz: clang's libFuzzer, a kept corpus in tests/fuzz/corpus/<target> ----
FUZZERS := $(patsubst tests/fuzz/%.c,$(B)/fuzz/%,$(wildcard tests/fuzz/fuzz_*.c))
$(B)/fuzz/%: tests/fuzz/%.c $(LIBS)
	@mkdir -p $(@D)
	$(CC) $(CFLAGS) $(LDFLAGS) -fsanitize=fuzzer,address,undefined -o $@ $< \
	    -Wl,--start-group $(LIBS) -Wl,--end-group $(LDLIBS)
fuzzers: $(FUZZERS)
FUZZ_SECONDS ?= 10
fuzz:
	$(MAKE) FUZZ=1 CC=clang fuzzers
	@sh scripts/run_fuzz.sh build/variant-fuzz/fuzz $(FUZZ_SECONDS)

# ---- hygiene ----
layers:
	@sh scripts/layers.sh $(ROOMS)
lint:
	@sh scripts/lint.sh
format:
	clang-format -i $$(git ls-files 'src/*.[ch]' 'tests/*.[ch]' 'bench/*.[ch]')
# What the tests reach, a line a folder: unit, API, command line and crash tests on one build; a quarter of an hour
# on two cores.
# COV_PARTS="unit" runs a part; `scripts/coverage.py build/variant-cov --missing src/store` prints what nothing reached.
cov:
	$(MAKE) COV=1 all tests faults
	@sh scripts/cov.sh build/variant-cov
docs:
	@sh scripts/docs.sh
man:
	@for m in man/*.[158]; do mandoc -T lint -W warning $$m || exit 1; done

PREFIX ?= /usr/local
install: all
	install -D -m 755 $(B)/cairn $(DESTDIR)$(PREFIX)/bin/cairn
	for m in man/*.[158]; do s=$${m##*.}; install -D -m 644 $$m $(DESTDIR)$(PREFIX)/share/man/man$$s/$${m#man/} || exit 1; done

clean:
	rm -rf build

.PHONY: all faults tests check crash-matrix soak races benches fuzzers fuzz layers lint format cov docs man install clean
.SECONDARY:
-include $(shell find $(B) -name '*.d' 2>/dev/null)
