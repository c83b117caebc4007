"""Fine-tuning with LoRA: a frozen, "pretrained" transformer encoder gets low-rank adapters in q, v and the MLP, plus a new classification head; gradient checkpointing (reentrant) is on to save memory.
FAULT at step 0: natural. The embeddings are frozen, so no input of the checkpointed blocks requires a gradient; the reentrant checkpoint then cuts the graph (torch only warns "None of the inputs have requires_grad=True") and no adapter ever gets a gradient. Only the head trains.
Without Rangewatch: loss 0.61 to 0.44 and accuracy 0.83 at step 299 by the head alone, |lora_B| stays exactly 0; with use_reentrant=False 0.13 and 0.97.
Cause: frozen. Step: 0 to 150. Right: adapters get no gradient / enable_input_require_grads / use_reentrant=False. Wrong: lower the learning rate, GradScaler, mask."""
EXPECT = {"cause": ["frozen"], "step": [0, 150], "place": r"encoder\.blocks(\.\d)?(\..+)?|.*lora.*", "rank": None,
          "right": r"(?i)no gradient|grad.{0,20}None|requires_grad|reentrant|checkpoint|detach|not reach|never (reach|receive|get)|frozen",
          "wrong": [r"(?i)lower the learning rate", "GradScaler", r"(?i)attention mask", "(?i)clip the grad"]}
import warnings
import torch
from torch import nn
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint
import rangewatch

warnings.filterwarnings("once")
torch.manual_seed(8)
torch.set_num_threads(1)
VOCAB, T, D = 60, 9, 16
polarity = torch.randint(0, 2, (VOCAB,)) * 2 - 1


class LoraLinear(nn.Module):
    def __init__(self, base, r=8, alpha=16):
        super().__init__()
        self.base = base
        self.lora_A = nn.Parameter(torch.randn(r, base.in_features) / r ** 0.5)
        self.lora_B = nn.Parameter(torch.zeros(base.out_features, r))
        self.scaling = alpha / r

    def forward(self, x):
        return self.base(x) + self.scaling * (x @ self.lora_A.T @ self.lora_B.T)


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.ln1, self.ln2 = nn.LayerNorm(D), nn.LayerNorm(D)
        self.q_proj, self.k_proj, self.v_proj, self.o_proj = (nn.Linear(D, D) for _ in range(4))
        self.up, self.down = nn.Linear(D, 2 * D), nn.Linear(2 * D, D)

    def forward(self, x):
        h = self.ln1(x)
        x = x + self.o_proj(F.scaled_dot_product_attention(self.q_proj(h), self.k_proj(h), self.v_proj(h)))
        return x + self.down(F.gelu(self.up(self.ln2(x))))


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens, self.positions = nn.Embedding(VOCAB, D), nn.Embedding(T, D)
        self.blocks = nn.ModuleList([Block(), Block()])

    def forward(self, ids):
        x = self.tokens(ids) + self.positions.weight
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=True)
        return x.mean(1)


class Classifier(nn.Module):
    def __init__(self, encoder):
        super().__init__()
        self.encoder, self.head = encoder, nn.Linear(D, 2)

    def forward(self, ids):
        return self.head(self.encoder(ids))


model = Classifier(Encoder())
model.encoder.requires_grad_(False)
for block in model.encoder.blocks:
    for name in ('q_proj', 'v_proj', 'up', 'down'):
        setattr(block, name, LoraLinear(getattr(block, name)))
trainable = [p for p in model.parameters() if p.requires_grad]
optimizer = torch.optim.AdamW(trainable, lr=1e-2)
handle = rangewatch.attach(model, optimizer)
for step in range(300):
    ids = torch.randint(0, VOCAB, (64, T))
    label = (polarity[ids].sum(1) > 0).long()
    logits = model(ids)
    loss = F.cross_entropy(logits, label)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 30 == 0 or step == 299:
        moved = sum(p.norm().item() for n, p in model.named_parameters() if "lora_B" in n)
        print(step, f"loss {loss.item():.4f} acc {(logits.argmax(1) == label).float().mean().item():.2f} |lora_B| {moved:.4f}", flush=True)
    handle.log(loss=loss.item())
handle.detach()
