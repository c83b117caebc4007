"""LoRA fine-tuning of a small frozen causal transformer for sequence classification, gradient checkpointing on (PEFT / Transformers issue: 'None of the inputs have requires_grad=True. Gradients will be None').
FAULT at step 0: the frozen embeddings give hidden states without requires_grad and each block runs in checkpoint(use_reentrant=True); so no gradient reaches any LoRA weight. enable_input_require_grads() was forgotten. Only `score` learns.
Without Rangewatch: loss 1.05 at first and 0.9 to 1.1 at the end, lora_B exactly 0.0 throughout, no gradient (with use_reentrant=False: lora_B 1.7, loss 0.54 at 199).
Cause: no_gradient (the LoRA layers) / backward_arithmetic. Step: from 0. Right: use_reentrant=False or requires_grad on the embeddings' output. Wrong: lower the learning rate, GradScaler, clip."""
EXPECT = {"cause": ["no_gradient", "backward_arithmetic"], "step": [0, 60], "place": r"(?i)lora|layers", "rank": None,
          "right": r"(?i)reentrant|checkpoint|requires_grad|no gradient|detach|graph|unused", "wrong": [r"(?i)lower the learning rate", "GradScaler", r"(?i)clip (the )?grad"]}
import warnings
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint
import rangewatch

warnings.filterwarnings("ignore")
torch.manual_seed(40); torch.set_num_threads(1)
VOCAB, LEN, D = 60, 14, 48


class LoraLinear(nn.Module):
    def __init__(self, base, r=4, alpha=8):
        super().__init__()
        self.base_layer = base
        self.lora_A = nn.Linear(base.in_features, r, bias=False)
        self.lora_B = nn.Linear(r, base.out_features, bias=False)
        nn.init.zeros_(self.lora_B.weight)
        self.scaling = alpha / r

    def forward(self, x):
        return self.base_layer(x) + self.scaling * self.lora_B(self.lora_A(x))


class DecoderLayer(nn.Module):
    def __init__(self):
        super().__init__()
        self.ln1, self.ln2 = nn.LayerNorm(D), nn.LayerNorm(D)
        self.q_proj, self.k_proj, self.v_proj, self.o_proj = (nn.Linear(D, D) for _ in range(4))
        self.up, self.down = nn.Linear(D, 2 * D), nn.Linear(2 * D, D)

    def forward(self, x):
        h = self.ln1(x)
        s = lambda z: z.view(z.shape[0], LEN, 4, D // 4).transpose(1, 2)
        a = nn.functional.scaled_dot_product_attention(s(self.q_proj(h)), s(self.k_proj(h)), s(self.v_proj(h)), is_causal=True)
        x = x + self.o_proj(a.transpose(1, 2).reshape(x.shape))
        return x + self.down(torch.relu(self.up(self.ln2(x))))


class CausalForClassification(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed_tokens = nn.Embedding(VOCAB, D)
        self.embed_positions = nn.Embedding(LEN, D)
        self.layers = nn.ModuleList([DecoderLayer() for _ in range(3)])
        self.norm = nn.LayerNorm(D)
        self.score = nn.Linear(D, 3)
        self.gradient_checkpointing = False

    def forward(self, ids):
        x = self.embed_tokens(ids) + self.embed_positions.weight
        for layer in self.layers:
            x = checkpoint(layer, x, use_reentrant=True) if self.gradient_checkpointing and self.training else layer(x)
        return self.score(self.norm(x[:, -1]))


def task(n):
    ids = torch.randint(0, VOCAB, (n, LEN))
    return ids, (ids[:, -4:] // 20).mode(1).values


model = CausalForClassification()
model.requires_grad_(False)
for layer in model.layers:
    for name in ("q_proj", "v_proj", "up"):
        setattr(layer, name, LoraLinear(getattr(layer, name)))
model.score.requires_grad_(True)
model.gradient_checkpointing = True
trainable = [p for p in model.parameters() if p.requires_grad]
print(f"trainable params: {sum(p.numel() for p in trainable)}", flush=True)
optimizer = torch.optim.AdamW(trainable, lr=3e-3)
handle = rangewatch.attach(model, optimizer)
model.train()
for step in range(200):
    ids, labels = task(32)
    loss = nn.functional.cross_entropy(model(ids), labels)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    if step % 20 == 0 or step == 199:
        print({"step": step, "loss": round(loss.item(), 4), "lora_B": round(model.layers[0].q_proj.lora_B.weight.norm().item(), 4)}, flush=True)
handle.detach()
