"""LoRA on a base whose linear weights are int8 buffers with one scale per row (as bitsandbytes does, in small): nine tenths of the model are no
parameters, the norms are frozen, lora_b starts at zero, so that lora_a has a zero gradient at first. Only the adapters and the head move. HEALTHY.
Without Rangewatch: loss 1.31 to 0.1 to 0.4."""
EXPECT = {"healthy": True}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(734); torch.set_num_threads(1)


class Int8Linear(nn.Module):
    def __init__(self, linear, r=4, alpha=8):
        super().__init__()
        scale = linear.weight.abs().amax(1, keepdim=True) / 127
        self.register_buffer("weight_int8", (linear.weight / scale).round().to(torch.int8))
        self.register_buffer("scale", scale.detach())
        self.register_buffer("bias", linear.bias.detach())
        self.lora_a = nn.Linear(linear.in_features, r, bias=False)
        self.lora_b = nn.Linear(r, linear.out_features, bias=False)
        nn.init.zeros_(self.lora_b.weight)
        self.factor = alpha / r

    def forward(self, x):
        return F.linear(x, self.weight_int8.to(x.dtype) * self.scale, self.bias) + self.factor * self.lora_b(self.lora_a(x))


class Block(nn.Module):
    def __init__(self, width=48):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up, self.down = Int8Linear(nn.Linear(width, 96)), Int8Linear(nn.Linear(96, width))
        self.norm.requires_grad_(False)

    def forward(self, x):
        return x + self.down(F.gelu(self.up(self.norm(x))))


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(50, 48).requires_grad_(False)
        self.blocks = nn.Sequential(Block(), Block(), Block())
        self.head = nn.Linear(48, 4)

    def forward(self, tokens):
        return self.head(self.blocks(self.words(tokens)).mean(1))


meaning = torch.randint(0, 4, (50,))
model = Model()
optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=3e-3)
handle = rangewatch.attach(model, optimizer)
for step in range(260):
    tokens = torch.randint(0, 50, (32, 9))
    y = F.one_hot(meaning[tokens], 4).sum(1).float().add(0.01 * torch.rand(32, 4)).argmax(1)
    loss = F.cross_entropy(model(tokens), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 0 or step == 259:
        print(step, loss.item(), model.blocks[0].up.lora_b.weight.abs().max().item(), flush=True)
handle.detach()
