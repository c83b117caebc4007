"""A classifier on a pretrained trunk, built on the meta device, materialised by to_empty and loaded with strict=False. FAULT at step 0: the
checkpoint has no weights for the new adapter, so the adapter keeps what happened to lie in the memory (made reproducible here: random bits),
numbers up to 1e38 and NaN.
Without Rangewatch: load_state_dict names adapter.weight and adapter.bias as missing; the loss is NaN from step 0 on.
Report: huggingface/transformers#30953 (empty tensors for missing weights are NaN), mosaicml/llm-foundry#1745 (norms missed at meta initialisation),
huggingface/transformers#48932, pytorch/pytorch#112012.
Cause: weight. Step: 0. Right: initialise / weights / checkpoint / missing keys. Wrong: learning rate, GradScaler, mask."""
EXPECT = {"cause": ["weight"], "step": [0, 2], "place": r".*adapter.*|", "rank": 0,
          "wrong": ["[Ll]ower the learning rate", "GradScaler", "attention mask"],
          "right": "initiali|weight|checkpoint|missing|load|parameter|reset|corrupt"}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(710); torch.set_num_threads(1)


class Net(nn.Module):
    def __init__(self, adapter=True):
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(24, 64), nn.GELU(), nn.Linear(64, 64), nn.LayerNorm(64))
        self.adapter = nn.Linear(64, 64) if adapter else nn.Identity()
        self.head = nn.Linear(64, 6)

    def forward(self, x):
        return self.head(F.gelu(self.adapter(self.trunk(x))))


def what_the_memory_held(p):
    p.data.view(torch.int32).random_(-2 ** 31, 2 ** 31 - 1)


checkpoint = Net(adapter=False).state_dict()
with torch.device("meta"):
    model = Net()
model.to_empty(device="cpu")
for p in model.parameters():
    what_the_memory_held(p)
print(model.load_state_dict(checkpoint, strict=False), flush=True)  # nobody reads it
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
handle = rangewatch.attach(model, optimizer)
kinds = torch.randn(6, 24)
for step in range(200):
    y = torch.randint(0, 6, (32,))
    loss = F.cross_entropy(model(kinds[y] + 0.7 * torch.randn(32, 24)), y)
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    if step % 40 == 0 or step < 3:
        print(step, loss.item(), model.adapter.weight.isnan().sum().item(), flush=True)
handle.detach()
