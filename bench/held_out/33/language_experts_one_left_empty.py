"""A mixture of four experts, chosen by the language of the row, tags words; languages join one after the other (0 and 1 at once, 2 at step 50, 3 at step 100). AdamW.
FAULT: the loop that initialises the experts' bare parameters runs over range(1, EXPERTS), one too few: the matrices of expert 3 are what `torch.empty` gave (here NaN: PyTorch's deterministic
mode fills memory that no one wrote). It does not show until language 3 joins.
Without Rangewatch: loss 1.93 to 0.03 at step 99; NaN at step 100 and from there on.
Cause: weight. Step: 0 (the weight) or 100 (the loss). Right: initialise / weight / empty. Wrong: lower the learning rate, GradScaler, attention mask."""
EXPECT = {"cause": ["weight"], "step": [0, 104], "place": r"experts(\.3(\..*)?)?", "rank": None,
          "right": "(?i)initiali|weight|empty|parameter", "wrong": ["[Ll]ower the learning rate", "GradScaler", "attention mask"]}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(334); torch.set_num_threads(1)
torch.use_deterministic_algorithms(True)
EXPERTS, WORDS, TAGS = 4, 40, 6


class Expert(nn.Module):
    def __init__(self, d, h):
        super().__init__()
        self.up = nn.Parameter(torch.empty(d, h))
        self.down = nn.Parameter(torch.empty(h, d))

    def init(self):
        nn.init.xavier_uniform_(self.up)
        nn.init.xavier_uniform_(self.down)

    def forward(self, x):
        return F.gelu(x @ self.up) @ self.down


class Tagger(nn.Module):
    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(WORDS, 24)
        self.experts = nn.ModuleList(Expert(24, 48) for _ in range(EXPERTS))
        for k in range(1, EXPERTS):
            self.experts[k - 1].init()
        self.norm = nn.LayerNorm(24)
        self.tags = nn.Linear(24, TAGS)

    def forward(self, x, language):
        h = self.words(x)
        out = torch.zeros_like(h)
        for k in language.unique().tolist():
            rows = (language == k).nonzero()[:, 0]
            out[rows] = self.experts[k](h[rows])
        return self.tags(self.norm(h + out))


net = Tagger()
truth = torch.randint(0, TAGS, (EXPERTS, WORDS))
optimizer = torch.optim.AdamW(net.parameters(), lr=3e-3)
handle = rangewatch.attach(net, optimizer)
for step in range(170):
    known = 2 + (step >= 50) + (step >= 100)
    language = torch.randint(0, known, (32,))
    x = torch.randint(0, WORDS, (32, 8))
    y = truth[language[:, None], x]
    loss = F.cross_entropy(net(x, language).flatten(0, 1), y.flatten())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 0 or 97 < step < 103:
        print(step, loss.item(), flush=True)
    handle.log(loss=loss.item())
handle.detach()
