"""The training step that `ablate bench --against pytorch` is measured against: the same model, loss and optimizer in PyTorch.

Reads the model and the batch as JSON from the command line. Then each line on standard input is a number of steps to take;
the answer is a line of JSON with the seconds of each step. With "valid_batches" it takes all steps of a run instead, with
its evaluations. Threads: RAYON_NUM_THREADS, as for the program itself.
"""

import json
import math
import os
import resource
import sys
import time

import torch
import torch.nn.functional as F
from torch import nn

CONFIG = json.loads(sys.argv[1])
torch.set_num_threads(int(os.environ.get("RAYON_NUM_THREADS", "1")))
torch.manual_seed(0)
M = CONFIG["model"]
D, HEADS, KV, T = M["d_model"], M["n_heads"], M["n_kv_heads"], M["seq_len"]
HEAD = D // HEADS


class DyT(nn.Module):
    def __init__(self, alpha):
        super().__init__()
        self.alpha = nn.Parameter(torch.tensor([alpha]))
        self.gamma = nn.Parameter(torch.ones(D))
        self.beta = nn.Parameter(torch.zeros(D))

    def forward(self, x):
        return self.gamma * torch.tanh(self.alpha * x) + self.beta


def norm(alpha):
    if M["norm"] == "layernorm":
        return nn.LayerNorm(D, eps=1e-5)
    if M["norm"] == "rmsnorm":
        return nn.RMSNorm(D, eps=1e-5)
    if M["norm"] == "dyt":
        return DyT(alpha)
    if M["norm"] == "none":
        return nn.Identity()
    sys.exit(f"model.norm = {M['norm']} has no counterpart in bench/pytorch_step.py")


ACTIVATIONS = {
    "relu": F.relu,
    "relu2": lambda x: F.relu(x).square(),
    "leaky_relu": F.leaky_relu,
    "elu": F.elu,
    "selu": F.selu,
    "gelu": F.gelu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "gelu_sigmoid": lambda x: x * torch.sigmoid(1.702 * x),
    "silu": F.silu,
    "glu": torch.sigmoid,
    "bilinear": lambda x: x,
    "reglu": F.relu,
    "geglu": F.gelu,
    "swiglu": F.silu,
}
GATED = M["ffn"] in ("glu", "bilinear", "reglu", "geglu", "swiglu")


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        linear = lambda i, o: nn.Linear(i, o, bias=M["bias"])
        self.n1, self.n2 = norm(M["alpha_attn"]), norm(M["alpha_ffn"])
        # One matrix for queries, keys and values, and one for gate and up, as a script written for speed has them.
        self.qkv = linear(D, D + 2 * KV * HEAD)
        self.o = linear(D, D)
        self.up = linear(D, M["d_ff"] * (2 if GATED else 1))
        self.down = linear(M["d_ff"], D)

    def attention(self, x, cos, sin):
        b, t, _ = x.shape
        q, k, v = self.qkv(x).split([D, KV * HEAD, KV * HEAD], dim=2)
        q, k, v = (y.view(b, t, -1, HEAD).transpose(1, 2) for y in (q, k, v))
        if cos is not None:
            turn = lambda y: torch.cat((-y[..., HEAD // 2 :], y[..., : HEAD // 2]), dim=-1)
            q, k = q * cos + turn(q) * sin, k * cos + turn(k) * sin
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=KV != HEADS)
        return self.o(y.transpose(1, 2).reshape(b, t, D))

    def ffn(self, x):
        act = ACTIVATIONS[M["ffn"]]
        if GATED:
            gate, up = self.up(x).chunk(2, dim=2)
            return self.down(act(gate) * up)
        return self.down(act(self.up(x)))

    def forward(self, x, cos, sin):
        if M["norm_placement"] == "pre":
            x = x + self.attention(self.n1(x), cos, sin)
            return x + self.ffn(self.n2(x))
        x = self.n1(x + self.attention(x, cos, sin))
        return self.n2(x + self.ffn(x))


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens = nn.Embedding(CONFIG["vocab_size"], D)
        self.positions = nn.Embedding(T, D) if M["position"] == "learned" else None
        self.blocks = nn.ModuleList(Block() for _ in range(M["n_layers"]))
        self.final = norm(M["alpha_final"]) if M["norm_placement"] == "pre" else nn.Identity()
        for p in self.parameters():
            if p.dim() == 2:
                nn.init.normal_(p, std=0.02)
        cos = sin = None
        if M["position"] == "rope":
            frequencies = M["rope_theta"] ** (-torch.arange(0, HEAD, 2, dtype=torch.float64) / HEAD)
            angles = torch.outer(torch.arange(T, dtype=torch.float64), frequencies)
            angles = torch.cat((angles, angles), dim=1)
            cos, sin = angles.cos().float(), angles.sin().float()
        self.register_buffer("cos", cos)
        self.register_buffer("sin", sin)

    def forward(self, ids, targets):
        x = self.tokens(ids)
        if self.positions is not None:
            x = x + self.positions.weight[: ids.shape[1]]
        for block in self.blocks:
            x = block(x, self.cos, self.sin)
        logits = self.final(x) @ self.tokens.weight.T
        return F.cross_entropy(logits.view(-1, logits.shape[-1]), targets.view(-1))


for key in ("dropout", "qk_norm", "embedding_scale"):
    if M[key]:
        sys.exit(f"model.{key} = {M[key]} has no counterpart in bench/pytorch_step.py")

model = Model()
C = CONFIG["train"]
groups = [
    {"params": [p for p in model.parameters() if p.dim() >= 2], "weight_decay": C["weight_decay"]},
    {"params": [p for p in model.parameters() if p.dim() < 2], "weight_decay": 0.0},
]
compiled = CONFIG["compile"]
optimizer = torch.optim.AdamW(groups, lr=C["lr"], betas=(C["beta1"], C["beta2"]), eps=1e-8, fused=True)
loss_of = torch.compile(model) if compiled else model
parameters = list(model.parameters())
data = torch.Generator().manual_seed(1)


def step():
    batch = torch.randint(CONFIG["vocab_size"], (C["batch_size"], T + 1), generator=data)
    loss = loss_of(batch[:, :-1].contiguous(), batch[:, 1:].contiguous())
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    nn.utils.clip_grad_norm_(parameters, C["grad_clip"])
    optimizer.step()
    return loss.item()


def say(answer):
    print(json.dumps(answer), flush=True)


def evaluate(shapes):
    model.eval()
    nats = 0.0
    with torch.no_grad():
        for batch, seq in shapes:
            ids = torch.randint(CONFIG["vocab_size"], (batch, seq + 1), generator=data)
            nats += loss_of(ids[:, :-1].contiguous(), ids[:, 1:].contiguous()).item() * batch * seq
    model.train()
    return nats


start = time.perf_counter()
loss = step()
first = time.perf_counter() - start
if abs(loss / math.log(CONFIG["vocab_size"]) - 1) > 0.05:
    sys.exit(f"the first loss is {loss}, and ln(vocab_size) is {math.log(CONFIG['vocab_size'])}")

if "valid_batches" in CONFIG:
    # A whole run: training steps and evaluations as often as ours. The first of each shape compiles.
    batches, times, evaluations = CONFIG["valid_batches"], [], []
    for i in range(2, C["steps"] + 1):
        start = time.perf_counter()
        step()
        times.append(time.perf_counter() - start)
        if i % C["eval_every"] == 0 or i == C["steps"]:
            start = time.perf_counter()
            evaluate(batches)
            evaluations.append(time.perf_counter() - start)
    usual = sorted(times)[len(times) // 2] if times else first
    say({"compilation": max(first - usual, 0.0) + max(evaluations[0] - min(evaluations), 0.0) if evaluations else 0.0})
    sys.exit()

step()
say({"first_step": first})
for line in sys.stdin:
    seconds = []
    for _ in range(int(line)):
        start = time.perf_counter()
        step()
        seconds.append(time.perf_counter() - start)
    # Linux counts in kilobytes.
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    say({"seconds": seconds, "data": 0.0, "parts": {}, "peak_bytes": peak})
