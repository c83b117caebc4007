"""A text classifier in float16 autocast: momentum SGD for the embeddings, AdamW for the rest, one GradScaler with a far too large first scale: the
first steps of both optimizers are skipped until the scale has come down; later it grows every 40 steps and is halved now and then. One
scaler.update a round, as the docs say. HEALTHY.
Without Rangewatch: loss 1.56 to 0.56; scale 1.1 billion, 131072 at step 12, up to 524288 at step 92, then between 65536 and 262144."""
EXPECT = {"healthy": True}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(732); torch.set_num_threads(1)
WORDS, KINDS = 80, 5
leaning = torch.randn(WORDS, KINDS)


class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(WORDS, 32)
        self.conv = nn.Conv1d(32, 48, 3, padding=1)
        self.body = nn.Sequential(nn.Linear(48, 64), nn.GELU(), nn.Linear(64, 64), nn.GELU())
        self.out = nn.Linear(64, KINDS)

    def forward(self, tokens):
        h = F.gelu(self.conv(self.words(tokens).transpose(1, 2))).mean(2)
        return self.out(self.body(h))


model = Classifier()
rest = [p for name, p in model.named_parameters() if not name.startswith("words")]
opt_words = torch.optim.SGD(model.words.parameters(), lr=0.5, momentum=0.9)
opt_rest = torch.optim.AdamW(rest, lr=2e-3)
scaler = torch.amp.GradScaler("cpu", init_scale=2.0 ** 30, growth_interval=40)
handle = rangewatch.attach(model, [opt_words, opt_rest], scaler=scaler)
for step in range(280):
    tokens = torch.randint(0, WORDS, (32, 12))
    y = leaning[tokens].sum(1).argmax(1)
    with torch.autocast("cpu", dtype=torch.float16):
        logits = model(tokens)
    loss = F.cross_entropy(logits.float(), y)
    opt_words.zero_grad()
    opt_rest.zero_grad()
    scaler.scale(loss).backward()
    scaler.unscale_(opt_rest)
    nn.utils.clip_grad_norm_(rest, 1.0)
    scaler.step(opt_words)
    scaler.step(opt_rest)
    scaler.update()
    if step % 20 == 0 or step < 16 or step == 279:
        print(step, loss.item(), scaler.get_scale(), flush=True)
handle.detach()
