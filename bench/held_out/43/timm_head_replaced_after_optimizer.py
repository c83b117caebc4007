"""Linear probe: a patch net pre-trained on 12 textures, then only the classifier is trained for 5 new ones (a timm thread: 'accuracy stays at chance after reset_classifier').
FAULT at step 0: the optimizer is made from get_classifier().parameters() and only then reset_classifier(5) puts a new layer in its place; the optimizer holds the old head, the new one gets gradients and never moves.
Without Rangewatch: loss 1.57 to 1.70 and accuracy 12 to 31 % (chance is 20 %) from first to last, head.weight has gradients but never changes.
Cause: optimizer (holds parameters that the model no longer has). Step: from 0. Right: build the optimizer after the head is replaced. Wrong: raise the learning rate, clip, GradScaler."""
EXPECT = {"cause": ["optimizer", "no_gradient"], "step": [0, 60], "place": None, "rank": None,
          "right": r"(?i)optimi[sz]er.*(hold|contain|own|param|after|built|belong|not in|another|no longer)|param.*(not|outside|missing|absent).*optimi[sz]er|add_param_group|rebuild|re-?create",
          "wrong": [r"(?i)(raise|increase|lower)( the)? learning rate", r"(?i)clip (the )?grad", "GradScaler"]}
from dataclasses import dataclass
import torch
from torch import nn
import rangewatch


@dataclass
class Args:
    lr: float = 0.05
    steps: int = 200
    batch: int = 32
    seed: int = 8


args = Args()
torch.manual_seed(args.seed); torch.set_num_threads(1)


class PatchMixer(nn.Module):
    def __init__(self, num_classes, dim=48):
        super().__init__()
        self.patch_embed = nn.Conv2d(3, dim, 4, 4)
        self.blocks = nn.Sequential(*[nn.Sequential(nn.Conv2d(dim, dim, 3, padding=1, groups=dim), nn.GELU(), nn.BatchNorm2d(dim), nn.Conv2d(dim, dim, 1), nn.GELU(), nn.BatchNorm2d(dim)) for _ in range(2)])
        self.num_features = dim
        self.head = nn.Linear(dim, num_classes)

    def get_classifier(self):
        return self.head

    def reset_classifier(self, n):
        self.head = nn.Linear(self.num_features, n)

    def forward(self, x):
        return self.head(self.blocks(self.patch_embed(x)).mean((2, 3)))


textures = torch.randn(17, 3, 16, 16)


def sample(ids):
    y = torch.randint(0, len(ids), (args.batch,))
    return textures[torch.tensor(ids)[y]].roll(int(torch.randint(0, 4, (1,))) * 4, -1) + 0.5 * torch.randn(args.batch, 3, 16, 16), y


model = PatchMixer(12)
pre = torch.optim.AdamW(model.parameters(), lr=3e-3)
for _ in range(100):
    x, y = sample(list(range(12)))
    pre.zero_grad()
    nn.functional.cross_entropy(model(x), y).backward()
    pre.step()

for p in model.parameters():
    p.requires_grad_(False)
for p in model.get_classifier().parameters():
    p.requires_grad_(True)
optimizer = torch.optim.SGD(model.get_classifier().parameters(), lr=args.lr, momentum=0.9)
model.reset_classifier(5)
handle = rangewatch.attach(model, optimizer)
model.eval()
for step in range(args.steps):
    x, y = sample(list(range(12, 17)))
    out = model(x)
    loss = nn.functional.cross_entropy(out, y)
    model.zero_grad()
    loss.backward()
    optimizer.step()
    handle.log(loss=loss.item())
    if step % 25 == 0 or step == args.steps - 1:
        print(f"Train: {step:>4d} Loss: {loss.item():.4f} Acc@1: {(out.argmax(1) == y).float().mean() * 100:.1f}", flush=True)
handle.detach()
